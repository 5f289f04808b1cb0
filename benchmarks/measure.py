"""The ways to measure: everything is a ratio of two sides that take turns in one process.

What slows the machine down for a while slows down both sides of a round; the median over rounds is reported. Each
side has its own number of threads, set before its turn, and one call that is not timed comes first.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

__all__ = ["Crossover", "Make", "Microseconds", "Ratio", "ShareOutside", "Side", "Slope", "measured", "rate", "slope"]

BURST = 0.03  # seconds of one turn of a side; a call that takes longer is made once
ROUNDS = 15
SECONDS = 6.0  # after which no further round begins, once there were FEWEST
FEWEST = 5
SLOW = 3  # rounds of what takes seconds

#: names of matrix products in torch's profiler
PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"})


class Side(NamedTuple):
    """Something to time.

    Fields:
        run: one call.
        work: what one call does, in a unit that both sides of a ratio share (1: the same task).
    """

    run: Callable[[], object]
    work: float = 1.0


Make = Callable[[], Side]


def rate(side: Side, threads: int) -> float:
    """Work per second of one turn: the median of as many calls as fit into a burst."""
    torch.set_num_threads(threads)
    first = _seconds(side.run)
    if first > BURST:
        return side.work / first
    calls = max(3, int(BURST / max(first, 1e-7)))
    return side.work / statistics.median(_seconds(side.run) for _ in range(calls))


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def _rounds(figure: Callable[[], float], rounds: int) -> list[float]:
    """The figures of `rounds` rounds, of fewer where they are slow."""
    figures: list[float] = []
    begin = time.perf_counter()
    while len(figures) < rounds and (len(figures) < min(FEWEST, rounds) or time.perf_counter() - begin < SECONDS):
        figures.append(figure())
    return figures


def _prepared(make: Make, threads: int) -> Side:
    """A side whose first call, which allocates and compiles, is behind it."""
    torch.set_num_threads(threads)
    side = make()
    side.run()
    return side


def measured(make: Make, threads: int, rounds: int = FEWEST) -> list[float]:
    """Rates of one side alone."""
    side = _prepared(make, threads)
    return _rounds(lambda: rate(side, threads), rounds)


@dataclass(frozen=True)
class Ratio:
    """Our rate ÷ their rate: how many times faster, or which share of a limit.

    Fields:
        ours, theirs: make the two sides.
        threads: of ours and of theirs.
        rounds: at most so many.
    """

    ours: Make
    theirs: Make
    threads: tuple[int, int] = (1, 1)
    rounds: int = ROUNDS

    def __call__(self) -> list[float]:
        ours, theirs = (_prepared(m, n) for m, n in zip((self.ours, self.theirs), self.threads, strict=True))
        return _rounds(lambda: rate(ours, self.threads[0]) / rate(theirs, self.threads[1]), self.rounds)


@dataclass(frozen=True)
class Crossover:
    """The length from which on we are as fast as they.

    Fields:
        ours, theirs: length -> makes a side.
        lengths: tried, growing; twice the last one where we never are.
        threads: of both.
    """

    ours: Callable[[int], Make]
    theirs: Callable[[int], Make]
    lengths: Sequence[int]
    threads: int

    def __call__(self) -> list[float]:
        sides = {
            T: (_prepared(self.ours(T), self.threads), _prepared(self.theirs(T), self.threads)) for T in self.lengths
        }

        def figure() -> float:
            found = 2 * self.lengths[-1]
            for T in reversed(self.lengths):
                ours, theirs = sides[T]
                if rate(ours, self.threads) < rate(theirs, self.threads):
                    return found
                found = T
            return found

        return _rounds(figure, ROUNDS)


@dataclass(frozen=True)
class Slope:
    """The exponent p of time = c · T^p, by least squares on logarithms.

    Fields:
        ours: length -> makes a side, whose work is the number of sequences.
        lengths: growing.
        threads: used.
    """

    ours: Callable[[int], Make]
    lengths: Sequence[int]
    threads: int = 1

    def __call__(self) -> list[float]:
        sides = {T: _prepared(self.ours(T), self.threads) for T in self.lengths}
        return _rounds(lambda: slope({T: 1 / rate(side, self.threads) for T, side in sides.items()}), SLOW)


def slope(seconds: Mapping[int, float]) -> float:
    """The exponent that fits times at several lengths."""
    x, y = ([math.log(v) for v in values] for values in (seconds.keys(), seconds.values()))
    return statistics.linear_regression(x, y).slope


@dataclass(frozen=True)
class Microseconds:
    """The time of a unit of work.

    Fields:
        ours: makes the side; its work is the number of calls.
        threads: used.
    """

    ours: Make
    threads: int = 1

    def __call__(self) -> list[float]:
        side = _prepared(self.ours, self.threads)
        return _rounds(lambda: 1e6 / rate(side, self.threads), ROUNDS)


@dataclass(frozen=True)
class ShareOutside:
    """The share of the time of a call that is spent neither in matrix products nor in our kernels, by torch's profiler.

    Fields:
        ours: makes the side.
        threads: used.
    """

    ours: Make
    threads: int

    def __call__(self) -> list[float]:
        side = _prepared(self.ours, self.threads)

        def figure() -> float:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                seconds = _seconds(side.run)
            inside = sum(event.self_cpu_time_total for event in profile.key_averages() if _inside(event.key))
            return 1 - inside / (1e6 * seconds)

        return _rounds(figure, SLOW)


def _inside(name: str) -> bool:
    return name in PRODUCTS or name.startswith("lavagna::")
