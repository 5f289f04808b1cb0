"""How long the chunks of a recurrence may be that takes directions out of its memory."""

from __future__ import annotations

__all__ = ["chunk_length"]


def chunk_length(at_most: int, tokens: int, keys: int) -> int:
    """Tokens a chunk: a power of two, no longer than the sequence needs, no more than K, or K/2 where K is below 8.

    Each token takes one direction of the K out of the memory, and K tokens may take all. What a chunk leaves of
    the memory that enters it is a sum of C + 1 terms; where little is left, that is the difference of nearly equal
    numbers, right to the rounding of what entered and not to its own (ops/delta/README.md has it measured).

    Args:
        at_most: a power of two.
        tokens: T.
        keys: K.
    """
    most = keys if keys >= 8 else max(keys // 2, 1)
    return min(at_most, 1 << max(tokens - 1, 0).bit_length(), 1 << (most.bit_length() - 1))
