"""Copy without one part after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...scratch.tasks import SYMBOLS
from ...tasks import held_out
from .copy_sort import WINDOW, outcome
from .drawing import line
from .experiment import Drawing, Experiment, Table, Values
from .training import Shape, Training
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "FULL", "WITHOUT_POSITIONS", "distinct", "measure"]

L = 6
FULL = Training("copy", L, seed=0)
WITHOUT_POSITIONS = Training("copy", L, seed=0, positions=False)
VARIANTS = {
    "full": FULL,
    "without_scale": Training("copy", L, seed=0, shape=Shape(scale=1.0)),
    "post_norm": Training("copy", L, seed=0, shape=Shape(norm="post")),
    "fast": Training("copy", L, seed=0, rate=1e-2),
    "post_norm_fast": Training("copy", L, seed=0, shape=Shape(norm="post"), rate=1e-2),
    "without_positions": WITHOUT_POSITIONS,
}
TITLES = {
    "full": "full",
    "without_scale": "scores not divided",
    "post_norm": "post-norm",
    "fast": "pre-norm, rate 1e-2",
    "post_norm_fast": "post-norm, rate 1e-2",
    "without_positions": "without positions",
}


def measure(work: Work, *, variants: Sequence[str] = tuple(VARIANTS)) -> Values:
    trained = dict(zip(variants, work.trained([VARIANTS[name] for name in variants]), strict=True))
    values: Values = {"variants": {name: outcome(of) for name, of in trained.items()}}
    different = distinct()
    whole = trained["without_positions"].accuracy.whole
    values["without_positions"] = {
        "distinct": float(whole[different].mean()),
        "repeated": float(whole[~different].mean()),
        "distinct_sequences": int(different.sum()),
        "repeated_sequences": int((~different).sum()),
        "share_distinct": float(different.mean()),
        "share_expected": float(np.prod(SYMBOLS - np.arange(L)) / SYMBOLS**L),
    }
    return values


def distinct() -> np.ndarray:
    """Which of the held-out sequences have no symbol twice."""
    _, answers = held_out("copy", L)
    return np.array([len(set(answer)) == L for answer in answers.tolist()])


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (TITLES[name], f"{at['loss']:.4f}", f"{at['per_token']:.3f}", f"{at['per_sequence']:.3f}")
        for name, at in values["variants"].items()
    ]
    at = values["without_positions"]
    split = [
        ("no symbol twice", str(at["distinct_sequences"]), f"{at['distinct']:.3f}"),
        ("a symbol twice", str(at["repeated_sequences"]), f"{at['repeated']:.3f}"),
    ]
    return {
        "variants": Table(("variant", "last loss", "per token", "per sequence"), rows),
        "repetitions": Table(("without positions", "sequences", "right"), split),
    }


def _draw(values: Values, axes: list[Axes]) -> None:
    for i, (name, at) in enumerate(values["variants"].items()):
        steps = WINDOW * (np.arange(len(at["curve"])) + 0.5)
        axes[0].plot(steps, at["curve"], label=TITLES[name], **line(i))
    axes[0].set_yscale("log")
    axes[0].set(xlabel="step", ylabel="loss")
    axes[0].legend(ncols=2)


WORDS = "Loss against steps: all variants fall to a ten-thousandth but the one without positions, which stays near one"
EXPERIMENT = Experiment(measure, tables, {"loss": Drawing(WORDS, _draw)})
