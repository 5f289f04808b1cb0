"""How sure a figure is: bootstrap intervals over documents, and over runs and documents together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .scoring import Scores

__all__ = ["Interval", "bits_per_byte", "by_position", "paired_difference"]

RESAMPLES = 2000
DRAWN_AT_ONCE = 1 << 20  # numbers of documents


class Interval(NamedTuple):
    """A figure with the ends of its interval; one document gives (−∞, ∞), for nothing is known then."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the sign of a difference is sure; else one "cannot tell"."""
        return self.low > 0 or self.high < 0


def bits_per_byte(runs: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Bits per byte, averaged over runs, with a bootstrap interval over runs and documents together.

        Σ_d bits_d / Σ_d bytes_d, of documents (and runs) drawn again with replacement, 2000 times

    Args:
        runs: scores of the same documents by models that differ in their seed alone; one is enough.
        confidence: share of the resamples within the interval.
        seed: of the resampling.

    Raises:
        InputError: no runs, or runs that scored different documents.

    Source: percentile bootstrap (Efron & Tibshirani 1993); tokens within a document depend on each other, so
    documents are drawn, not tokens.
    """
    _check(runs)
    bits, sizes = _totals(runs), runs[0].bytes[:, None]
    return _intervals(_values(bits, sizes), _resample(bits, sizes, seed), sizes, confidence)[0]


def paired_difference(a: Sequence[Scores], b: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Bits per byte of `a` minus those of `b`, on the same documents (negative: a is better).

    Both are taken from the same draw of documents each time, so what makes a document hard or easy cancels;
    runs are drawn for each by itself. Arguments and errors as in :func:`bits_per_byte`.
    """
    _check([*a, *b])
    _check(b)
    a_bits, b_bits, sizes = _totals(a), _totals(b), a[0].bytes[:, None]
    draws = _resample(a_bits, sizes, seed) - _resample(b_bits, sizes, seed, own_runs=1)
    return _intervals(_values(a_bits, sizes) - _values(b_bits, sizes), draws, sizes, confidence)[0]


def by_position(runs: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> list[tuple[int, int, Interval]]:
    """Bits per byte of each position bin that holds text, as (first position, end, interval).

    Arguments and errors as in :func:`bits_per_byte`.
    """
    _check(runs)
    bits, sizes = np.stack([run.position_bits for run in runs]), runs[0].position_bytes
    held = sizes.any(0)
    edges = zip(runs[0].bins[:-1][held].tolist(), runs[0].bins[1:][held].tolist(), strict=True)
    bits, sizes = bits[:, :, held], sizes[:, held]
    found = _intervals(_values(bits, sizes), _resample(bits, sizes, seed), sizes, confidence)
    return [(low, high, interval) for (low, high), interval in zip(edges, found, strict=True)]


def _check(runs: Sequence[Scores]) -> None:
    if not runs:
        raise InputError("expected at least one run, got none")
    for run in runs:
        if not (np.array_equal(run.documents, runs[0].documents) and np.array_equal(run.bytes, runs[0].bytes)):
            raise InputError("expected runs that scored the same documents, got different ones")


def _totals(runs: Sequence[Scores]) -> np.ndarray:
    """Bits [runs, documents, 1]."""
    return np.stack([run.bits for run in runs])[:, :, None]


def _values(bits: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Bits [runs, documents, k] and bytes [documents, k] -> bits per byte [k], averaged over runs."""
    return bits.mean(0).sum(0) / sizes.sum(0)


def _resample(bits: np.ndarray, sizes: np.ndarray, seed: int, own_runs: int = 0) -> np.ndarray:
    """Draw documents and runs again: float64 [RESAMPLES, k], NaN where a draw has no byte.

    `own_runs` gives other draws of runs, the same of documents.
    """
    documents = np.random.default_rng([seed, 0])
    runs = np.random.default_rng([seed, 1 + own_runs])
    n_runs, n, k = bits.shape
    flat = bits.transpose(1, 0, 2).reshape(n, n_runs * k)
    draws = np.full((RESAMPLES, k), np.nan)
    at_once = max(DRAWN_AT_ONCE // n, 1)
    for first in range(0, RESAMPLES, at_once):
        part = draws[first : first + at_once]
        counts = _counts(documents, len(part), n)
        shares = _counts(runs, len(part), n_runs) / n_runs
        mean = np.einsum("drk,dr->dk", (counts @ flat).reshape(len(part), n_runs, k), shares)
        total = counts @ sizes
        np.divide(mean, total, out=part, where=total > 0)
    return draws


def _counts(generator: np.random.Generator, draws: int, n: int) -> np.ndarray:
    """How often each of n things comes when n are drawn with replacement: float64 [draws, n]."""
    drawn = generator.integers(0, n, (draws, n)) + n * np.arange(draws)[:, None]
    return np.bincount(drawn.ravel(), minlength=draws * n).reshape(draws, n).astype(np.float64)


def _intervals(values: np.ndarray, draws: np.ndarray, sizes: np.ndarray, confidence: float) -> list[Interval]:
    known = (sizes > 0).sum(0) > 1
    low, high = np.nanquantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    low, high = np.where(known, low, -math.inf), np.where(known, high, math.inf)
    return [Interval(*map(float, triple)) for triple in zip(values, low, high, strict=True)]
