"""The decoder's gradients against centred differences, coordinate by coordinate, at three step sizes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import Config, Decoder, check_gradients, cross_entropy, cross_entropy_backward
from ...scratch.block import Norm
from .drawing import FAINT, colour
from .experiment import Drawing, Experiment, Table, Values
from .training import VOCABULARY
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

STEPS = ("1e-06", "1e-05", "1e-04")
NORMS: tuple[Norm, ...] = ("pre", "post")
ROWS, TOKENS = 3, 12
COORDINATES = 6  # of each tensor
SMALLEST = 1e-6  # derivative that a relative error is taken of
LOWEST = 1e-12  # error that the figure shows


def measure(work: Work) -> Values:
    pieces = [(norm, step) for norm in NORMS for step in STEPS]
    checks = work.map(one_check, pieces)
    values: Values = {norm: {} for norm in NORMS}
    for (norm, step), (names, check) in zip(pieces, checks, strict=True):
        values[norm]["coordinates"] = names  # the same at every step
        values[norm][step] = check
    for found in values.values():
        found["worse"] = found[STEPS[-1]]["largest"] / found[STEPS[0]]["largest"]
    return values


def one_check(piece: tuple[Norm, str], tick: Tick) -> tuple[list[str], Values]:
    """The coordinates that are checked, and what comes of them."""
    norm, epsilon = piece
    rng = np.random.default_rng(0)
    config = Config(VOCABULARY, d=16, heads=4, layers=2, d_ff=64, t_max=TOKENS + 1, norm=norm)
    decoder = Decoder(config, rng)
    tokens = rng.integers(0, VOCABULARY, (ROWS, TOKENS))
    targets = rng.integers(0, VOCABULARY, (ROWS, TOKENS))
    weights = np.zeros((ROWS, TOKENS))
    weights[:, 6:] = 1.0
    loss_of = partial(cross_entropy, targets=targets, weights=weights)
    logits, run = decoder.forward(tokens)
    gradients = decoder.backward(cross_entropy_backward(loss_of(logits)[1]), run)
    checked = []
    for coordinate in check_gradients(
        lambda: loss_of(decoder.forward(tokens)[0])[0],
        decoder.params,
        gradients,
        epsilon=float(epsilon),
        count=COORDINATES,
        above=SMALLEST,
        pattern=lambda: decoder.forward(tokens)[1].relus,
    ):
        checked.append(coordinate)
        tick(list(decoder.params).index(coordinate.name) / len(decoder.params))
    smooth = [c.error for c in checked if not c.kink]
    return [f"{c.name}[{c.at}]" for c in checked], {
        "errors": [float(f"{c.error:.3g}") for c in checked],
        "kinks": [i for i, c in enumerate(checked) if c.kink],
        "largest": max(c.error for c in checked),
        "largest_without_kink": max(smooth),
    }


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (
            f"{norm}-norm",
            step,
            f"{at['largest']:.1e}",
            f"{at['largest_without_kink']:.1e}",
            f"{len(at['kinks'])} of {len(at['errors'])}",
        )
        for norm in NORMS
        for step, at in ((step, values[norm][step]) for step in STEPS)
    ]
    titles = ("block", "ε", "largest error", "without kinks", "coordinates that cross a kink")
    worst = []
    for norm in NORMS:
        at = values[norm][STEPS[-1]]
        for i in sorted(range(len(at["errors"])), key=lambda i: -at["errors"][i])[:5]:
            kink = "yes" if i in at["kinks"] else "no"
            worst.append((f"{norm}-norm", values[norm]["coordinates"][i], f"{at['errors'][i]:.1e}", kink))
    return {
        "errors": Table(titles, rows),
        "worst": Table(("block", "coordinate", "error at ε = 1e-4", "crosses a kink"), worst),
    }


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, step in zip(axes, STEPS, strict=True):
        errors, kinks = values["pre"][step]["errors"], values["pre"][step]["kinks"]
        smooth = [i for i in range(len(errors)) if i not in kinks]
        for i, (at, label) in enumerate(((smooth, "smooth"), (kinks, "crosses a kink"))):
            shown = [max(errors[place], LOWEST) for place in at]
            panel.plot(at, shown, "os"[i], color=colour(i), markersize=3.5, label=label)
        panel.axhline(1e-3, color=FAINT, linewidth=1)
        panel.set_yscale("log")
        panel.set_ylim(LOWEST, 1)
        panel.set(title=f"ε = {float(step):.0e}", xlabel="coordinate")
    axes[0].set_ylabel("relative error")
    axes[2].legend(loc="center right")


WORDS = "Relative error of every coordinate at three step sizes, pre-norm: kinks spoil more of them the larger the step"
EXPERIMENT = Experiment(measure, tables, {"errors": Drawing(WORDS, _draw, panels=(1, 1, 1))})
