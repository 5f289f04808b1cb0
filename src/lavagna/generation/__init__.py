"""Generation: prefill in chunks, one-token steps from the state, sampling, streaming."""

from __future__ import annotations

from .generate import Generated, generate, stream
from .reading import Reading, read
from .sampling import Sampler, Sampling
from .text import Piece, StopHolder, encode_prompt, stream_text

__all__ = [
    "Generated",
    "Piece",
    "Reading",
    "Sampler",
    "Sampling",
    "StopHolder",
    "encode_prompt",
    "generate",
    "read",
    "stream",
    "stream_text",
]
