"""Copy with scores divided by √d_k and not, at head sizes where it should matter."""

from __future__ import annotations

import math
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


def measure(work: Work) -> Values:
    grid = {(d_k, way, seed): training(d_k, way, seed) for d_k in SHAPES for way in WAYS for seed in SEEDS}
    found = dict(zip(grid, work.trained(list(grid.values())), strict=True))
    values: Values = {}
    for d_k in SHAPES:
        ways: Values = {}
        for way in WAYS:
            seeds = {str(seed): _told(found[d_k, way, seed], grid[d_k, way, seed]) for seed in SEEDS}
            steps = [at["learned_at"] for at in seeds.values()]
            ways[way] = {"seeds": seeds, "learned_at": float(np.mean(steps)), "learned": all(s < STEPS for s in steps)}
        values[str(d_k)] = {**ways, "slower": ways["undivided"]["learned_at"] / ways["divided"]["learned_at"]}
    return values


def training(d_k: int, way: str, seed: int) -> Training:
    d, heads = SHAPES[d_k]
    scale = None if way == "divided" else 1.0
    return Training("copy", L, seed, shape=Shape(d=d, heads=heads, scale=scale), rate=RATE, steps=STEPS)


def _told(trained: Trained, training: Training) -> Values:
    """The outcome; when the loss (the mean of ten steps) first fell below LEARNED, or the number of steps; the rows'
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
        "learned_at": int(below[0]) + 10 if len(below) else STEPS,
        "first_weights": float(largest),
    }


def tables(values: Values) -> dict[str, Table]:
    rows = []
    for d_k, (d, heads) in SHAPES.items():
        for way in WAYS:
            at = values[str(d_k)][way]
            seeds = at["seeds"].values()
            steps = [seed["learned_at"] for seed in seeds]
            rows.append(
                (
                    str(d_k),
                    f"{d}, {heads}",
                    way,
                    f"{np.mean([seed['first_weights'] for seed in seeds]):.2f}",
                    ", ".join(f"> {STEPS}" if step == STEPS else str(step) for step in steps),
                    ", ".join(f"{seed['per_sequence']:.3f}" for seed in seeds),
                )
            )
    titles = ("d_k", "d, heads", "scores", "largest weight, untrained", f"steps to a loss of {LEARNED}", "per sequence")
    return {"learning": Table(titles, rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, d_k in zip(axes, SHAPES, strict=True):
        for i, way in enumerate(WAYS):
            for j, seed in enumerate(values[str(d_k)][way]["seeds"].values()):
                steps = WINDOW * (np.arange(len(seed["curve"])) + 0.5)
                panel.plot(steps, seed["curve"], color=colour(i), linewidth=1.2, label=way if j == 0 else None)
        panel.set_yscale("log")
        panel.set_ylim(1e-3, 5)
        panel.set(title=f"d_k = {d_k} (√d_k = {math.sqrt(d_k):.1f})", xlabel="step")
    axes[0].set_ylabel("loss")
    axes[0].legend()


WORDS = "Loss against steps, three seeds: the undivided scores learn later, the more so the larger the head"
EXPERIMENT = Experiment(measure, tables, {"loss": Drawing(WORDS, _draw, panels=(1, 1, 1))})
