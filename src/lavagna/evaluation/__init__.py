"""Evaluation: bits per byte of documents, by position, with intervals, streaming."""

from __future__ import annotations

from .intervals import LEAST_DOCUMENTS, Interval, bits_per_byte, by_position, paired_difference, position_change
from .scoring import Pieces, Scores, choose_pieces, framed, position_bins, score, windows_per_part

__all__ = [
    "LEAST_DOCUMENTS",
    "Interval",
    "Pieces",
    "Scores",
    "bits_per_byte",
    "by_position",
    "choose_pieces",
    "framed",
    "paired_difference",
    "position_bins",
    "position_change",
    "score",
    "windows_per_part",
]
