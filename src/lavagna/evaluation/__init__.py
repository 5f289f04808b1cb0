"""Evaluation: bits per byte of documents, by position, with intervals, streaming."""

from __future__ import annotations

from .intervals import Interval, bits_per_byte, by_position, paired_difference
from .score import Scores, position_bins, score

__all__ = [
    "Interval",
    "Scores",
    "bits_per_byte",
    "by_position",
    "paired_difference",
    "position_bins",
    "score",
]
