"""Softmax over scores of random queries and keys, divided by √d_k and not, at several head sizes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import softmax
from .drawing import FAINT, line
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

SIZES = (8, 16, 32, 64, 128, 256, 512)
SHOWN = (8, 64, 512)
KEYS = 64
WAYS = ("undivided", "divided")
COLUMNS = {  # of the values -> of the table, digits
    "deviation": ("deviation of scores", 3),
    "maximum": ("largest weight", 4),
    "entropy": ("entropy", 4),
    "slope": ("Σ p(1 − p)", 4),
}


def measure(work: Work) -> Values:
    return {
        "sizes": dict(zip(map(str, SIZES), work.map(one_size, SIZES), strict=True)),
        "limits": {"entropy": math.log(KEYS), "slope": 1 - 1 / KEYS},
        # Of two keys whose raw scores are two deviations apart, how much more weight the better one has.
        "ratio": {"undivided": math.exp(2 * math.sqrt(64)), "divided": math.exp(2)},
    }


def one_size(d_k: int, tick: Tick) -> Values:
    rng = np.random.default_rng(100 + d_k)
    Q, K = rng.normal(size=(400, KEYS, d_k)), rng.normal(size=(400, KEYS, d_k))
    raw = Q @ K.swapaxes(-1, -2)
    return {
        "variance": float(raw.var()),
        "undivided": _weights(raw),
        "divided": _weights(raw / math.sqrt(d_k)),
    }


def _weights(scores: np.ndarray) -> dict[str, float]:
    p = softmax(scores)
    return {
        "deviation": float(scores.std()),
        "maximum": float(p.max(-1).mean()),
        "entropy": float(-(p * np.log(p + 1e-300)).sum(-1).mean()),
        "slope": float((p * (1 - p)).sum(-1).mean()),
    }


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (
            str(d_k),
            f"{values['sizes'][str(d_k)]['variance']:.2f}",
            way,
            *(f"{values['sizes'][str(d_k)][way][name]:.{digits}f}" for name, (_, digits) in COLUMNS.items()),
        )
        for d_k in SHOWN
        for way in WAYS
    ]
    titles = ("d_k", "variance of q · k", "scores", *(title for title, _ in COLUMNS.values()))
    return {"weights": Table(titles, rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, name, limit in zip(axes, ("entropy", "slope"), ("ln 64", "1 − 1/64"), strict=True):
        for i, way in enumerate(WAYS):
            panel.plot(SIZES, [values["sizes"][str(d)][way][name] for d in SIZES], label=way, **line(i, marker=True))
        panel.axhline(values["limits"][name], color=FAINT, linewidth=1)
        panel.annotate(
            f"{limit}, all keys alike", (8, values["limits"][name]), (0, 3), textcoords="offset points", color=FAINT
        )
        panel.set_xscale("log", base=2)
        panel.set_xticks(SIZES, map(str, SIZES))
        panel.set_ylim(0, values["limits"][name] * 1.15)
        panel.set(xlabel="d_k", ylabel=COLUMNS[name][0])
    axes[0].legend()


WORDS = "Entropy and Σ p(1 − p) of softmax rows against head size: divided by √d_k both stay high, undivided both fall"
EXPERIMENT = Experiment(measure, tables, {"saturation": Drawing(WORDS, _draw, panels=(1, 1))})
