"""How sure a figure is: bootstrap intervals over documents.

Runs that differ in their seed are averaged: drawing two to five of them again would give intervals that are too
narrow. What seeds add is a matter of :mod:`lavagna.studies.differences`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .scoring import Scores

__all__ = ["LEAST_DOCUMENTS", "Interval", "bits_per_byte", "by_position", "paired_difference", "position_change"]

RESAMPLES = 2000
DRAWN_AT_ONCE = 1 << 20  # numbers of documents

#: of fewer documents a bootstrap says 95 % and means much less (of five, 85 % at best)
LEAST_DOCUMENTS = 6


class Interval(NamedTuple):
    """A figure with the ends of its interval; too few documents give (−∞, ∞), for nothing is known then."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the sign of a difference is sure; else one "cannot tell"."""
        return self.low > 0 or self.high < 0


def bits_per_byte(runs: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Bits per byte, averaged over runs, with a bootstrap interval over documents.

        Σ_d bits_d / Σ_d bytes_d, of documents drawn again with replacement, 2000 times

    Args:
        runs: scores of the same documents by models that differ in their seed alone; one is enough.
        confidence: share of the resamples within the interval.
        seed: of the resampling.

    Returns:
        The interval, unbounded where fewer than LEAST_DOCUMENTS documents were scored.

    Raises:
        InputError: no runs, or runs that scored different documents.

    Source: percentile bootstrap (Efron & Tibshirani 1993); tokens within a document depend on each other, so
    documents are drawn, not tokens.
    """
    bits, sizes = _mean_bits(runs), runs[0].bytes[:, None]
    return _intervals(bits.sum(0) / sizes.sum(0), _resample(bits, sizes, seed), sizes, confidence)[0]


def paired_difference(a: Sequence[Scores], b: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Bits per byte of `a` minus those of `b`, on the same documents (negative: a is better).

    Both are taken from the same draw of documents each time, so what makes a document hard or easy cancels.
    Arguments and errors as in :func:`bits_per_byte`.
    """
    _check([*a, *b])
    bits, sizes = _mean_bits(a) - _mean_bits(b), a[0].bytes[:, None]
    return _intervals(bits.sum(0) / sizes.sum(0), _resample(bits, sizes, seed), sizes, confidence)[0]


def by_position(runs: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> list[tuple[int, int, Interval]]:
    """Bits per byte of each position bin that holds text, as (first position, end, interval).

    Arguments and errors as in :func:`bits_per_byte`.
    """
    _check(runs)
    bits, sizes = np.mean([run.position_bits for run in runs], axis=0), runs[0].position_bytes
    held = sizes.any(0)
    edges = zip(runs[0].bins[:-1][held].tolist(), runs[0].bins[1:][held].tolist(), strict=True)
    bits, sizes = bits[:, held], sizes[:, held]
    found = _intervals(bits.sum(0) / sizes.sum(0), _resample(bits, sizes, seed), sizes, confidence)
    return [(low, high, interval) for (low, high), interval in zip(edges, found, strict=True)]


def position_change(
    runs: Sequence[Scores], near: int, far: int, *, confidence: float = 0.95, seed: int = 0
) -> Interval:
    """Bits per byte in one position bin minus those in another, of the documents that have text in both.

    Both are taken from the same draw of documents each time, so what makes a document hard or easy cancels.

    Args:
        runs, confidence, seed: as in :func:`bits_per_byte`.
        near, far: numbers of the bins; positive: `far` needs more.

    Raises:
        InputError: as there, or no document has text in both.
    """
    _check(runs)
    sizes = runs[0].position_bytes[:, [near, far]]
    both = sizes.all(1)
    if not both.any():
        raise InputError(f"expected a document with text in the position bins {near} and {far}, got none")
    bits, sizes = np.mean([run.position_bits for run in runs], axis=0)[both][:, [near, far]], sizes[both]
    value, draws = np.diff(bits.sum(0) / sizes.sum(0)), np.diff(_resample(bits, sizes, seed), axis=1)
    return _intervals(value, draws, sizes[:, :1], confidence)[0]


def _check(runs: Sequence[Scores]) -> None:
    if not runs:
        raise InputError("expected at least one run, got none")
    for run in runs:
        if not (np.array_equal(run.documents, runs[0].documents) and np.array_equal(run.bytes, runs[0].bytes)):
            raise InputError("expected runs that scored the same documents, got different ones")


def _mean_bits(runs: Sequence[Scores]) -> np.ndarray:
    """Bits [documents, 1], averaged over runs."""
    _check(runs)
    return np.mean([run.bits for run in runs], axis=0)[:, None]


def _resample(bits: np.ndarray, sizes: np.ndarray, seed: int) -> np.ndarray:
    """Bits and bytes [documents, k] -> bits per byte of documents drawn again: float64 [RESAMPLES, k].

    NaN where a draw has no byte.
    """
    generator = np.random.default_rng([seed, 0])
    n, k = bits.shape
    draws = np.full((RESAMPLES, k), np.nan)
    at_once = max(DRAWN_AT_ONCE // n, 1)
    for first in range(0, RESAMPLES, at_once):
        part = draws[first : first + at_once]
        counts = _counts(generator, len(part), n)
        total = counts @ sizes
        np.divide(counts @ bits, total, out=part, where=total > 0)
    return draws


def _counts(generator: np.random.Generator, draws: int, n: int) -> np.ndarray:
    """How often each of n things comes when n are drawn with replacement: float64 [draws, n]."""
    drawn = generator.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)


def _intervals(values: np.ndarray, draws: np.ndarray, sizes: np.ndarray, confidence: float) -> list[Interval]:
    known = (sizes > 0).sum(0) >= LEAST_DOCUMENTS
    low, high = np.nanquantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    low, high = np.where(known, low, -math.inf), np.where(known, high, math.inf)
    return [Interval(*map(float, triple)) for triple in zip(values, low, high, strict=True)]
