"""Copy with scores divided by √d_k and not, at head sizes where it should matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...tasks import batch
from .copy_sort import WINDOW, outcome
from .drawing import colour
from .experiment import Drawing, Experiment, Table, Values
from .training import BATCH, Shape, Trained, Training
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

L = 6
#: d_k -> width and heads. The first two differ in nothing else.
SHAPES = {8: (64, 8), 64: (64, 1), 128: (128, 1)}
WAYS = ("divided", "undivided")
SEEDS = (0, 1, 2)
STEPS, RATE = 300, 1e-3
LEARNED = 0.1  # loss


def measure(
    work: Work, *, sizes: Sequence[int] = tuple(SHAPES), seeds: Sequence[int] = SEEDS, steps: int = STEPS
) -> Values:
    grid = {(d_k, way, seed): training(d_k, way, seed, steps) for d_k in sizes for way in WAYS for seed in seeds}
    found = dict(zip(grid, work.trained(list(grid.values())), strict=True))
    values: Values = {"steps": steps, "sizes": {}}
    for d_k in sizes:
        ways: Values = {}
        for way in WAYS:
            each = {str(seed): _told(found[d_k, way, seed], grid[d_k, way, seed]) for seed in seeds}
            ways[way] = {"seeds": each, "learned_at": float(np.mean([at["learned_at"] for at in each.values()]))}
        values["sizes"][str(d_k)] = {**ways, "slower": ways["undivided"]["learned_at"] / ways["divided"]["learned_at"]}
    return values


def training(d_k: int, way: str, seed: int, steps: int) -> Training:
    d, heads = SHAPES[d_k]
    scale = None if way == "divided" else 1.0
    return Training("copy", L, seed, shape=Shape(d=d, heads=heads, scale=scale), rate=RATE, steps=steps)


def _told(trained: Trained, training: Training) -> Values:
    """The outcome; the step at which the loss, a mean of ten, first fell below LEARNED, or the last one; the rows'
    largest weights before the first step, at the places of the answer."""
    mean = np.convolve(trained.losses, np.full(10, 0.1), "valid")
    below = np.flatnonzero(mean < LEARNED)
    rng = np.random.default_rng(training.seed)
    decoder = training.decoder(rng)
    inputs, _, _ = batch(training.task, rng, BATCH, L)
    _, run = decoder.forward(inputs)
    largest = np.mean([A[:, :, L:].max(-1).mean() for A in run.weights])
    return {
        **outcome(trained),
        "learned_at": int(below[0]) + 10 if len(below) else training.steps,
        "first_weights": float(largest),
    }


def tables(values: Values) -> dict[str, Table]:
    rows = []
    for d_k, at in values["sizes"].items():
        d, heads = SHAPES[int(d_k)]
        for way in WAYS:
            seeds = at[way]["seeds"].values()
            steps = [seed["learned_at"] for seed in seeds]
            rows.append(
                (
                    d_k,
                    f"{d}, {heads}",
                    way,
                    f"{np.mean([seed['first_weights'] for seed in seeds]):.2f}",
                    ", ".join(f"> {step}" if step == values["steps"] else str(step) for step in steps),
                    ", ".join(f"{seed['per_sequence']:.3f}" for seed in seeds),
                )
            )
    titles = ("d_k", "d, heads", "scores", "largest weight, untrained", f"steps to a loss of {LEARNED}", "per sequence")
    return {"learning": Table(titles, rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, (d_k, at) in zip(axes, values["sizes"].items(), strict=True):
        for i, way in enumerate(WAYS):
            for j, seed in enumerate(at[way]["seeds"].values()):
                steps = WINDOW * (np.arange(len(seed["curve"])) + 0.5)
                panel.plot(steps, seed["curve"], color=colour(i), linewidth=1.2, label=way if j == 0 else None)
        panel.set_yscale("log")
        panel.set_ylim(5e-4, 5)
        panel.set(title=f"d_k = {d_k} (√d_k = {math.sqrt(int(d_k)):.1f})", xlabel="step")
    axes[0].set_ylabel("loss")
    axes[0].legend()


WORDS = (
    "Loss against steps, three seeds: with undivided scores it falls later, with large heads in some seeds much later"
)
EXPERIMENT = Experiment(measure, tables, {"loss": Drawing(WORDS, _draw, panels=(1, 1, 1))})
