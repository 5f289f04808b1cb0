"""Time and memory against the number of tokens: attention, and the delta rule in both its forms."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import attention, cache_bytes, causal_mask
from ...scratch.memory import delta_chunked, delta_recurrent, l2_normalised
from .drawing import line
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

D_K = 64
LENGTHS = (128, 512, 2048)
ROUNDS = 5  # of which the fastest counts: the others were disturbed
WAYS = {"attention": "attention", "recurrent": "delta rule, recurrent", "chunked": "delta rule, chunked"}


def measure(work: Work) -> Values:
    (timed,) = work.map(timings, [LENGTHS])
    slopes = {way: float(np.polyfit(np.log(LENGTHS), np.log(list(at.values())), 1)[0]) for way, at in timed.items()}
    memory = {
        str(T): {"scores": T * T * 8 / 2**20, "inputs": 3 * T * D_K * 8 / 2**20, "state": D_K * D_K * 8 / 2**20}
        for T in LENGTHS
    }
    return {
        "seconds": timed,
        "slopes": slopes,
        "memory": memory,
        "scores_of_32768_in_float16": 32768**2 * 2 / 2**30,
        "cache_of_32768_in_float16": cache_bytes(1, 1, D_K, 32768, 2) / 2**20,
    }


def timings(lengths: tuple[int, ...], tick: Tick) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {way: {} for way in WAYS}
    for i, T in enumerate(lengths):
        rng = np.random.default_rng(T)
        Q, K, V = (rng.normal(size=(T, D_K)) for _ in range(3))
        unit, beta, mask = l2_normalised(K), rng.uniform(size=T), causal_mask(T)
        S = np.zeros((D_K, D_K))
        runs: dict[str, Callable[[], object]] = {
            "attention": partial(attention, Q, K, V, mask),
            "recurrent": partial(delta_recurrent, S, Q, unit, V, beta),
            "chunked": partial(delta_chunked, S, Q, unit, V, beta),
        }
        for way, run in runs.items():
            found[way][str(T)] = min(_seconds(run) for _ in range(ROUNDS))
        tick((i + 1) / len(lengths))
    return found


def _seconds(run: Callable[[], object]) -> float:
    # Of this process alone: what else the machine does adds nothing.
    begin = time.process_time()
    run()
    return time.process_time() - begin


def tables(values: Values) -> dict[str, Table]:
    lengths = tuple(values["memory"])
    times = [
        (
            title,
            *(f"{values['seconds'][way][T] * 1e3:.2f} ms" for T in lengths),
            f"{values['slopes'][way]:.2f}",
        )
        for way, title in WAYS.items()
    ]
    rows = {"scores": "scores T × T", "inputs": "Q, K, V together", "state": "state of the delta rule"}
    memory = [(title, *(f"{values['memory'][T][name]:.2f} MiB" for T in lengths)) for name, title in rows.items()]
    head = tuple(f"T = {T}" for T in lengths)
    return {"times": Table(("", *head, "slope"), times), "memory": Table(("", *head), memory)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for i, (way, title) in enumerate(WAYS.items()):
        at = values["seconds"][way]
        slope = f"{title}: slope {values['slopes'][way]:.2f}"
        axes[0].plot([int(T) for T in at], [s * 1e3 for s in at.values()], label=slope, **line(i, marker=True))
    axes[0].set_xscale("log", base=2)
    axes[0].set_yscale("log")
    axes[0].set_xticks([int(T) for T in values["memory"]], values["memory"])
    axes[0].set(xlabel="T", ylabel="ms")
    axes[0].legend()


WORDS = (
    "Milliseconds against tokens on logarithmic axes: attention is about twice as steep as both forms of the delta rule"
)
EXPERIMENT = Experiment(measure, tables, {"times": Drawing(WORDS, _draw, height=3.6)})
