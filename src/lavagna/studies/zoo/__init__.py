"""The zoo: how each mixer's memory survives a token, in words and as matrices read off its operator."""

from __future__ import annotations

from .drawing import draw, shade, told
from .table import Line, lines
from .transitions import Recorded, record, transitions
from .views import MOST, WIDTH, View, view

__all__ = [
    "MOST",
    "WIDTH",
    "Line",
    "Recorded",
    "View",
    "draw",
    "lines",
    "record",
    "shade",
    "told",
    "transitions",
    "view",
]
