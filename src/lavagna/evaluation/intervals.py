"""How sure a figure is: bootstrap intervals over documents, and over runs and documents together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .score import Scores

__all__ = ["Interval", "bits_per_byte", "by_position", "paired_difference"]

RESAMPLES = 2000


class Interval(NamedTuple):
    """A figure with the ends of its interval."""

    value: float
    low: float
    high: float


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
    documents are drawn, not tokens. With one document the interval is that document's value: nothing is known.
    """
    bits, sizes = _stack(runs)
    draws = _resample(bits, sizes, seed)
    return _interval(float((bits.sum(1) / sizes.sum()).mean()), draws, confidence)


def paired_difference(a: Sequence[Scores], b: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> Interval:
    """Bits per byte of `a` minus those of `b`, on the same documents (negative: a is better).

    Both are taken from the same draw of documents each time, so what makes a document hard or easy cancels;
    runs are drawn for each by itself.
    """
    a_bits, sizes = _stack(a)
    b_bits, b_sizes = _stack(b)
    if not np.array_equal(sizes, b_sizes):
        raise InputError("a paired difference needs scores of the same documents, got different ones")
    draws = _resample(a_bits, sizes, seed) - _resample(b_bits, sizes, seed, own_runs=1)
    value = (a_bits.sum(1).mean() - b_bits.sum(1).mean()) / sizes.sum()
    return _interval(float(value), draws, confidence)


def by_position(runs: Sequence[Scores], *, confidence: float = 0.95, seed: int = 0) -> list[tuple[int, int, Interval]]:
    """Bits per byte of each position bin that holds text, as (first position, end, interval)."""
    found = []
    for i, (low, high) in enumerate(zip(runs[0].bins[:-1], runs[0].bins[1:], strict=True)):
        bits = np.stack([run.position_bits[:, i] for run in runs])
        sizes = runs[0].position_bytes[:, i]
        if sizes.sum():
            draws = _resample(bits, sizes, seed)
            found.append((int(low), int(high), _interval(float((bits.sum(1) / sizes.sum()).mean()), draws, confidence)))
    return found


def _stack(runs: Sequence[Scores]) -> tuple[np.ndarray, np.ndarray]:
    """Bits [runs, documents] and bytes [documents]."""
    if not runs:
        raise InputError("expected at least one run, got none")
    if any(not np.array_equal(run.documents, runs[0].documents) for run in runs):
        raise InputError("expected runs that scored the same documents, got different ones")
    return np.stack([run.bits for run in runs]), runs[0].bytes


def _resample(bits: np.ndarray, sizes: np.ndarray, seed: int, own_runs: int = 0) -> np.ndarray:
    """Draw documents and runs again: float64 [RESAMPLES]. `own_runs` gives other draws of runs, the same of documents."""
    documents = np.random.default_rng([seed, 0])
    runs = np.random.default_rng([seed, 1 + own_runs])
    draws = np.empty(RESAMPLES)
    for i in range(RESAMPLES):
        counts = np.bincount(documents.integers(0, len(sizes), len(sizes)), minlength=len(sizes))
        chosen = runs.integers(0, len(bits), len(bits))
        draws[i] = (bits[chosen] @ counts).mean() / max(int(sizes @ counts), 1)
    return draws


def _interval(value: float, draws: np.ndarray, confidence: float) -> Interval:
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(value, float(low), float(high))
