"""The table: one file for each kind of row, joined in the order in which they are shown."""

from __future__ import annotations

from ..row import Row
from . import calls, delta, lengths, linear, models, norm, scan, short_conv, steps

__all__ = ["ROWS"]

ROWS: tuple[Row, ...] = (
    *models.GENERATION,  # first: in a process whose memory is in pieces weights find fewer large pages
    *scan.ROWS,
    *delta.ROWS,
    *linear.ROWS,
    *short_conv.ROWS,
    *norm.ROWS,
    *lengths.ROWS,
    *steps.ROWS,
    *calls.ROWS,
    *models.ROWS,
)
