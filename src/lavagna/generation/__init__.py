"""Generation: prefill in chunks, one-token steps from the state, sampling, streaming."""

from __future__ import annotations

from .reading import Reading, read
from .sampling import Sampler, Sampling
from .streaming import Generated, generate, stream
from .text import Piece, StopHolder, read_text, stream_text

__all__ = [
    "Generated",
    "Piece",
    "Reading",
    "Sampler",
    "Sampling",
    "StopHolder",
    "generate",
    "read",
    "read_text",
    "stream",
    "stream_text",
]
