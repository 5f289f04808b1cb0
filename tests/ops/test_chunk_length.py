"""Chunks are as long as their errors allow, and no longer."""

from __future__ import annotations

import pytest

from lavagna.ops.chunk_length import chunk_length


@pytest.mark.parametrize(
    ("keys", "length"),
    [(1, 1), (3, 1), (4, 2), (7, 2), (8, 8), (12, 8), (16, 16), (24, 16), (31, 16), (32, 32), (64, 64), (256, 128)],
)
def test_a_chunk_has_no_more_tokens_than_a_memory_has_directions(keys: int, length: int) -> None:
    assert chunk_length(128, 1000, keys) == length


@pytest.mark.parametrize(("tokens", "length"), [(0, 1), (1, 1), (2, 2), (3, 4), (33, 64), (65, 64)])
def test_a_chunk_is_no_longer_than_the_sequence_needs(tokens: int, length: int) -> None:
    assert chunk_length(64, tokens, 128) == length
