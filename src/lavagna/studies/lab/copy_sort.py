"""Copy and sort, three lengths and three seeds each, trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

import numpy as np

from ...tasks import Task
from .drawing import line
from .experiment import Drawing, Experiment, Table, Values
from .training import Trained, Training
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure", "outcome", "smooth"]

TASKS: tuple[Task, ...] = get_args(Task)
LENGTHS = (4, 6, 8)
SEEDS = (0, 1, 2)
WINDOW = 25  # steps that a point of a curve is the mean of


def measure(work: Work, *, lengths: Sequence[int] = LENGTHS, seeds: Sequence[int] = SEEDS) -> Values:
    grid = [Training(task, L, seed) for task in TASKS for L in lengths for seed in seeds]
    found = dict(zip(grid, map(outcome, work.trained(grid)), strict=True))
    values: Values = {task: {} for task in TASKS}
    for task in TASKS:
        for L in lengths:
            each = {str(seed): found[Training(task, L, seed)] for seed in seeds}
            means = {name: float(np.mean([at[name] for at in each.values()])) for name in ("per_token", "per_sequence")}
            values[task][str(L)] = {
                "seeds": each,
                **means,
                "whole_below_token": means["per_sequence"] < means["per_token"],
            }
    return values


def outcome(trained: Trained) -> Values:
    """What is told of a training."""
    return {
        "loss": float(trained.losses[-1]),
        "per_token": trained.accuracy.per_token,
        "per_sequence": trained.accuracy.per_sequence,
        "curve": smooth(trained.losses),
    }


def smooth(losses: np.ndarray) -> list[float]:
    """Means of WINDOW steps, to four digits: enough for a curve."""
    return [float(f"{mean:.4g}") for mean in losses.reshape(-1, WINDOW).mean(1)]


def tables(values: Values) -> dict[str, Table]:
    rows = []
    for task in TASKS:
        for L, at in values[task].items():
            whole = [seed["per_sequence"] for seed in at["seeds"].values()]
            rows.append(
                (
                    task,
                    L,
                    f"{at['per_token']:.3f}",
                    f"{at['per_sequence']:.3f}",
                    ", ".join(f"{share:.3f}" for share in whole),
                )
            )
    return {"accuracy": Table(("task", "L", "per token", "per sequence", "per sequence, each seed"), rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, task in zip(axes, TASKS, strict=True):
        for i, (L, at) in enumerate(values[task].items()):
            for j, seed in enumerate(at["seeds"].values()):
                steps = WINDOW * (np.arange(len(seed["curve"])) + 0.5)
                label = f"L = {L}" if j == 0 else None
                panel.plot(steps, seed["curve"], label=label, alpha=0.8, linewidth=1.2, color=line(i)["color"])
        panel.set_yscale("log")
        panel.set(title=task, xlabel="step", ylabel="loss")
    axes[0].legend()


WORDS = "Loss against steps, each seed: copy falls to a thousandth and below, sort to a few hundredths"
EXPERIMENT = Experiment(measure, tables, {"loss": Drawing(WORDS, _draw, panels=(1, 1))})
