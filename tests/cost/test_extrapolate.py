"""Counts of long sequences from short ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lavagna.cost.extrapolate import CHECK, PERIOD, Measured, extrapolate


def chunked(chunk: int) -> tuple[list[int], Callable[[int], Measured]]:
    """A layer that works in chunks, with a part that looks at all pairs; and the lengths it was asked for."""
    asked: list[int] = []

    def measure(tokens: int) -> Measured:
        asked.append(tokens)
        whole, rest = divmod(tokens, chunk)
        inside = whole * chunk**2 + rest**2
        counts = 7 + 3 * inside + 5 * whole, tokens * (tokens + 1) // 2 + bool(rest)
        return Measured(counts, (9 + whole,))

    return asked, measure


@pytest.mark.parametrize("tokens", [1, 31, 32, 287, 288, 289, 1000, 4096, 131072, 999_999, 1_000_000])
@pytest.mark.parametrize("chunk", [1, 16, 32, 64, 128, 256])
def test_it_is_exact(chunk: int, tokens: int) -> None:
    _, measure = chunked(chunk)
    assert extrapolate(measure, tokens) == measure(tokens)


@pytest.mark.parametrize("chunk", [32, 256])
def test_it_asks_for_short_lengths_alone(chunk: int) -> None:
    asked, measure = chunked(chunk)
    extrapolate(measure, 1_000_000)
    assert max(asked) < (CHECK + 1) * chunk


def test_a_short_sequence_is_measured_itself() -> None:
    asked, measure = chunked(32)
    extrapolate(measure, CHECK * PERIOD)
    assert asked == [CHECK * PERIOD]


@pytest.mark.parametrize("tokens", [400, 10_001, 1_000_000])
@pytest.mark.parametrize("window", [5, 32, 500, 3000])
def test_beyond_a_start_growth_may_change(window: int, tokens: int) -> None:
    def measure(length: int) -> Measured:
        full = min(length, window)
        return Measured((full * (full + 1) // 2 + window * (length - full),))

    assert extrapolate(measure, tokens, start=window) == measure(tokens)


@pytest.mark.parametrize("rows", [667, 130_560])
def test_pieces_of_any_size(rows: int) -> None:
    def measure(tokens: int) -> Measured:
        return Measured((-(-tokens // rows), tokens))

    tokens = 8_000_003
    assert extrapolate(measure, tokens, start=rows, period=rows) == measure(tokens)


def test_what_is_largest_goes_on_in_a_straight_line() -> None:
    def measure(tokens: int) -> Measured:
        return Measured((tokens,), (max(70, 3 * tokens + 5),))  # the bend is below three periods

    assert extrapolate(measure, 1_000_000) == measure(1_000_000)
