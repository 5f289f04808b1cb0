"""Evaluation: bits per byte of documents, by position, with intervals, streaming."""

from __future__ import annotations

from .intervals import Interval, bits_per_byte, by_position, paired_difference
from .scoring import Pieces, Scores, choose_pieces, framed, position_bins, score, windows_per_part

__all__ = [
    "Interval",
    "Pieces",
    "Scores",
    "bits_per_byte",
    "by_position",
    "choose_pieces",
    "framed",
    "paired_difference",
    "position_bins",
    "score",
    "windows_per_part",
]
