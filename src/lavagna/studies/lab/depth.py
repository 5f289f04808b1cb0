"""Copy with 2, 8 and 16 layers, norms before or after, with and without warm-up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import cross_entropy, cross_entropy_backward
from ...scratch.block import Norm
from ...tasks import batch
from .copy_sort import WINDOW, outcome
from .drawing import legend_above, line
from .experiment import Drawing, Experiment, Table, Values
from .training import BATCH, Shape, Training
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

L = 6
LAYERS = (2, 8, 16)
NORMS: tuple[Norm, ...] = ("pre", "post")
WARM_UPS = {"without": 0, "with": 100}
SEEDS = (0, 1)
STEPS = 300


def measure(work: Work, *, depths: Sequence[int] = LAYERS, seeds: Sequence[int] = SEEDS, steps: int = STEPS) -> Values:
    grid = {
        (layers, norm, warm_up, seed): training(layers, norm, warm_up, seed, steps)
        for layers in depths
        for norm in NORMS
        for warm_up in WARM_UPS
        for seed in seeds
    }
    found = dict(zip(grid, map(outcome, work.trained(list(grid.values()))), strict=True))
    values: Values = {"runs": {}, "gradients": {}}
    for layers in depths:
        at: Values = {norm: {} for norm in NORMS}
        for norm in NORMS:
            for warm_up in WARM_UPS:
                each = {str(seed): found[layers, norm, warm_up, seed] for seed in seeds}
                whole = [seed["per_sequence"] for seed in each.values()]
                at[norm][warm_up] = {"seeds": each, "least": min(whole), "most": max(whole)}
        values["runs"][str(layers)] = at
        values["gradients"][str(layers)] = {
            norm: first_gradients(training(layers, norm, "without", seeds[0], steps)) for norm in NORMS
        }
    return values


def training(layers: int, norm: Norm, warm_up: str, seed: int, steps: int) -> Training:
    return Training("copy", L, seed, Shape(layers=layers, norm=norm), warm_up=WARM_UPS[warm_up], steps=steps)


def first_gradients(training: Training) -> list[float]:
    """‖∂L/∂θ‖ over the parameters θ of each block, before the first step."""
    rng = np.random.default_rng(training.seed)
    decoder = training.decoder(rng)
    inputs, targets, weights = batch(training.task, rng, BATCH, training.L)
    logits, run = decoder.forward(inputs)
    gradients = decoder.backward(cross_entropy_backward(cross_entropy(logits, targets, weights)[1]), run)
    return [
        float(np.sqrt(sum((gradients[f"{layer}.{name}"] ** 2).sum() for name in decoder.layer(layer))))
        for layer in range(training.shape.layers)
    ]


def tables(values: Values) -> dict[str, Table]:
    rows = []
    for layers, at in values["runs"].items():
        for norm in NORMS:
            for warm_up in WARM_UPS:
                seeds = at[norm][warm_up]["seeds"].values()
                rows.append(
                    (
                        layers,
                        f"{norm}-norm",
                        warm_up,
                        ", ".join(f"{seed['loss']:.3f}" for seed in seeds),
                        ", ".join(f"{seed['per_sequence']:.3f}" for seed in seeds),
                    )
                )
    gradients = [
        (layers, f"{norm}-norm", f"{found[0]:.2f}", f"{found[len(found) // 2]:.2f}", f"{found[-1]:.2f}")
        for layers, by_norm in values["gradients"].items()
        for norm, found in by_norm.items()
    ]
    return {
        "runs": Table(("layers", "block", "warm-up", "last loss, each seed", "per sequence, each seed"), rows),
        "gradients": Table(("layers", "block", "first", "middle", "last block"), gradients),
    }


def _draw_loss(values: Values, axes: list[Axes]) -> None:
    for panel, (layers, at) in zip(axes, values["runs"].items(), strict=True):
        i = 0
        for norm in NORMS:
            for warm_up in WARM_UPS:
                seed = next(iter(at[norm][warm_up]["seeds"].values()))
                steps = WINDOW * (np.arange(len(seed["curve"])) + 0.5)
                panel.plot(steps, seed["curve"], label=f"{norm}-norm, {warm_up} warm-up", **line(i))
                i += 1
        panel.set_yscale("log")
        panel.set_ylim(2e-3, 5)
        panel.set(title=f"{layers} layers", xlabel="step")
    axes[0].set_ylabel("loss")
    legend_above(axes[0])


def _draw_gradients(values: Values, axes: list[Axes]) -> None:
    for panel, (layers, at) in zip(axes, values["gradients"].items(), strict=True):
        for i, (norm, found) in enumerate(at.items()):
            panel.plot(range(1, len(found) + 1), found, label=f"{norm}-norm", **line(i, marker=True))
        panel.set_yscale("log")
        panel.set_ylim(0.1, 20)
        panel.set_xticks(range(1, len(found) + 1, 1 if len(found) < 9 else 5))
        panel.set(title=f"{layers} layers", xlabel="block")
    axes[0].set_ylabel("norm of the gradient")
    axes[0].legend()


LOSS = (
    "Loss against steps, seed 0: pre-norm learns at every depth, post-norm at 8 layers with warm-up, at 16 not at all"
)
GRADIENTS = "Norm of each block's gradient before the first step, at three depths"
EXPERIMENT = Experiment(
    measure,
    tables,
    {
        "loss": Drawing(LOSS, _draw_loss, panels=(1, 1, 1)),
        "gradients": Drawing(GRADIENTS, _draw_gradients, panels=(1, 1, 1)),
    },
)
