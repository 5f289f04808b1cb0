"""The cost of a long sequence from those of a few short ones.

A layer that takes its tokens in chunks of C does the same work for each whole chunk, apart from what grows with all
tokens before it (attention). Among the lengths T ≡ r modulo a multiple of C every count of operations or bytes is
therefore a polynomial of T of degree two at most, which three of these lengths determine. A fourth, far off, tells
whether the modulus was a multiple of C at all. What is the largest of several things is a straight line only once one
of them has become the largest: the two longest lengths tell that line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["CHECK", "PERIOD", "Measured", "extrapolate"]

#: Lengths are tried at distances of so many tokens first, and of twice as many until they fit.
PERIOD = 32
#: The three lengths are 1, 2 and 3 periods, and the one that checks them is so many. A chunk longer than that would
#: look like no chunk at all: up to 288 tokens it is seen.
CHECK = 9


class Measured(NamedTuple):
    """What a run at one length gave.

    Fields:
        counts: what adds up over chunks: operations, bytes that are kept.
        extremes: what is the largest of several things: the longest chain, the most memory.
    """

    counts: tuple[int, ...]
    extremes: tuple[int, ...] = ()


def extrapolate(measure: Callable[[int], Measured], tokens: int, *, start: int = 0, period: int = PERIOD) -> Measured:
    """What `measure` would return for a long sequence: counts exactly, extremes on a straight line.

    Args:
        measure: runs a length.
        tokens: the length that is asked for.
        start: from this length on each further token is treated alike (a window is full, say).
        period: distance of the lengths that are tried first.
    """
    while True:
        first = -(-start // period) * period + tokens % period
        lengths = [first + n * period for n in (1, 2, 3, CHECK)]
        if tokens <= lengths[-1]:
            return measure(tokens)
        *near, far = map(measure, lengths)
        if _parabola([m.counts for m in near], CHECK) == far.counts:
            n = (tokens - first) // period
            return Measured(_parabola([m.counts for m in near], n), _line(near[-1].extremes, far.extremes, n))
        period *= 2


def _parabola(values: list[tuple[int, ...]], n: int) -> tuple[int, ...]:
    """The polynomials through the values at 1, 2 and 3, at n: Newton's forward differences."""
    return tuple(
        one + (n - 1) * (two - one) + (n - 1) * (n - 2) // 2 * (three - 2 * two + one)
        for one, two, three in zip(*values, strict=True)
    )


def _line(three: tuple[int, ...], far: tuple[int, ...], n: int) -> tuple[int, ...]:
    """The straight lines through the values at 3 and at CHECK, at n."""
    return tuple(b + (n - CHECK) * (b - a) // (CHECK - 3) for a, b in zip(three, far, strict=True))
