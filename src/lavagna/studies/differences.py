"""Which differences between candidates are sure: documents and seeds together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..evaluation import (
    LEAST_DOCUMENTS,
    Interval,
    Scores,
    bits_per_byte,
    by_position,
    paired_difference,
    position_change,
)

__all__ = [
    "ASSUMED_SPREAD",
    "Difference",
    "SeedSpread",
    "beyond",
    "difference",
    "positions",
    "quality",
    "seed_spread",
    "student",
]

#: By how much, as a share of the bits per byte, two runs that differ in their seed alone are taken to differ at most
#: (19 times in 20) where no repeated runs tell. Small models after a short training, as in the demo, were seen to have
#: a standard deviation of 2 %, and two runs differ by up to 2.8 deviations; after long training it is less.
ASSUMED_SPREAD = 0.05

#: 97.5 % quantile of Student's t with 1, 2, ... degrees of freedom
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


class SeedSpread(NamedTuple):
    """How much runs differ that differ in their seed alone.

    Fields:
        deviation: standard deviation of bits per byte; None where no run was repeated.
        repeats: how many runs were repetitions of another one: degrees of freedom of `deviation`.
    """

    deviation: float | None
    repeats: int


class Difference(NamedTuple):
    """Bits per byte of one candidate minus those of another, with a 95 % interval over documents and seeds.

    An interval of ±∞ says that nothing is known.
    """

    value: float
    low: float
    high: float

    @property
    def sure(self) -> bool:
        """Whether the interval excludes zero; else one cannot tell."""
        return self.low > 0 or self.high < 0


def student(freedom: int) -> float:
    """97.5 % quantile of Student's t with `freedom` ≥ 1 degrees of freedom, to 1 %."""
    return STUDENT[freedom - 1] if freedom <= len(STUDENT) else 1.96 + 2.5 / freedom


def seed_spread(runs: Sequence[Sequence[Scores]]) -> SeedSpread:
    """The spread pooled over groups of runs, those of a group differing in their seed alone.

        s² = Σ_g Σ_r (x_gr − x̄_g)² / Σ_g (n_g − 1)

    It is taken to be the same for all groups: few runs tell little of each.
    """
    return _pooled([[run.bits_per_byte for run in group] for group in runs])


def _pooled(groups: Sequence[Sequence[float]]) -> SeedSpread:
    """The spread of any figure of runs, as :func:`seed_spread` says."""
    repeats = sum(len(group) - 1 for group in groups)
    if repeats == 0:
        return SeedSpread(None, 0)
    squares = sum(float(((np.array(group) - np.mean(group)) ** 2).sum()) for group in groups)
    return SeedSpread(math.sqrt(squares / repeats), repeats)


def quality(runs: Sequence[Scores], spread: SeedSpread) -> Interval:
    """Bits per byte of a candidate, with a 95 % interval over documents, and over seeds where runs were repeated.

    The half-widths of the two, t · s / sqrt(n) for seeds, are added as squares: drawing three runs again, as a
    bootstrap would, gives intervals that hold the truth three times in four only.
    """
    return Interval(*_widened(bits_per_byte(runs), _of_seeds(spread, len(runs))))


def _of_seeds(spread: SeedSpread, runs: int) -> float:
    """Half the width that seeds give to a mean over runs; 0 where nothing was repeated."""
    return 0.0 if spread.deviation is None else student(spread.repeats) * spread.deviation / math.sqrt(runs)


def positions(runs: Sequence[Scores], groups: Sequence[Sequence[Scores]]) -> list[tuple[int, int, Interval]]:
    """Bits per byte of each position bin as :func:`quality` has it: (first position, end, interval).

    Args:
        runs: of one candidate.
        groups: all runs, those of a group differing in their seed alone; they tell the spread of each bin.
    """

    def value(run: Scores, i: int) -> float:
        return float(run.position_bits[:, i].sum() / run.position_bytes[:, i].sum())

    held = np.flatnonzero(runs[0].position_bytes.any(0)).tolist()
    spreads = [_pooled([[value(run, i) for run in group] for group in groups]) for i in held]
    return [
        (low, high, Interval(*_widened(interval, _of_seeds(spread, len(runs)))))
        for (low, high, interval), spread in zip(by_position(runs), spreads, strict=True)
    ]


def beyond(
    runs: Sequence[Scores], groups: Sequence[Sequence[Scores]], context: int
) -> tuple[tuple[int, int], tuple[int, int], Interval] | None:
    """How many more bits per byte a candidate needs far past a training window than at its end.

    Compared are the last position bin within `context` and the last one past it that enough documents reach, on
    the documents that have text in both; seeds as in :func:`quality`, of the change itself.

    Args:
        runs, groups: as in :func:`positions`.
        context: tokens of a training window.

    Returns:
        (first position, end) of the near and of the far bin, and the change; None where too few documents reach
        past a training window.
    """
    bins, sizes = runs[0].bins, runs[0].position_bytes
    within = [i for i in range(len(bins) - 1) if bins[i + 1] <= context and sizes[:, i].any()]
    if not within:
        return None
    near = within[-1]
    past = [
        i
        for i in range(near + 1, len(bins) - 1)
        if bins[i] >= context and sizes[:, [near, i]].all(1).sum() >= LEAST_DOCUMENTS
    ]
    if not past:
        return None
    far = past[-1]
    spread = _pooled([[position_change([run], near, far).value for run in group] for group in groups])
    change = Interval(*_widened(position_change(runs, near, far), _of_seeds(spread, len(runs))))
    return (int(bins[near]), int(bins[near + 1])), (int(bins[far]), int(bins[far + 1])), change


def difference(a: Sequence[Scores], b: Sequence[Scores], spread: SeedSpread, *, b_has_seed: bool = True) -> Difference:
    """How much more bits per byte `a` needs than `b`.

    Documents: a paired bootstrap of the scores averaged over runs, so that what makes a document hard cancels.
    Seeds: t · s · sqrt(1/n_a + 1/n_b), or ASSUMED_SPREAD where nothing was repeated. The half-widths of the two are
    added as squares.

    Args:
        a, b: runs of either, on the same documents.
        spread: from :func:`seed_spread`.
        b_has_seed: False for a table of counts.
    """
    documents = paired_difference(a, b)
    share = 1 / len(a) + (1 / len(b) if b_has_seed else 0)
    if spread.deviation is None:
        # The assumption is on a difference of two single runs.
        seeds = ASSUMED_SPREAD * min(_value(a), _value(b)) * math.sqrt(share / 2)
    else:
        seeds = student(spread.repeats) * spread.deviation * math.sqrt(share)
    return Difference(*_widened(documents, seeds))


def _widened(documents: Interval, seeds: float) -> tuple[float, float, float]:
    """An interval over documents with the half-width that seeds have."""
    return (
        documents.value,
        documents.value - math.hypot(documents.value - documents.low, seeds),
        documents.value + math.hypot(documents.high - documents.value, seeds),
    )


def _value(runs: Sequence[Scores]) -> float:
    """Bits per byte, averaged over runs."""
    return float(np.mean([run.bits_per_byte for run in runs]))
