"""Gradients by hand against differences: the same derivative, asked of the function itself.

    n = (f(θ + ε) − f(θ − ε)) / 2ε

The error of n is of order ε² where f is smooth (the linear terms cancel between the two sides), plus rounding of order
1e-16/ε: ε = 1e-6 lies between. Where a ReLU changes sides between θ − ε and θ + ε, f has a kink, n is a mixture of two
slopes, and the larger ε, the more coordinates meet one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import numpy as np

from ..errors import InputError
from .arrays import Array, Mask

__all__ = ["Coordinate", "check_gradients", "difference"]

T = TypeVar("T")


class Coordinate(NamedTuple):
    """One coordinate of one parameter: both derivatives, their relative distance, and whether a kink lies between."""

    name: str
    at: int  # row-major
    numeric: float
    by_hand: float
    error: float  # |n − g| / max(|n|, |g|)
    kink: bool


def difference(f: Callable[[], float], theta: Array, index: int, epsilon: float = 1e-6) -> float:
    """(f(θ + ε) − f(θ − ε)) / 2ε along one coordinate (row-major) of an array that f reads; it is put back."""
    with_plus, with_minus = _both_sides(f, theta, index, epsilon)
    return (with_plus - with_minus) / (2 * epsilon)


def check_gradients(
    f: Callable[[], float],
    params: Mapping[str, Array],
    gradients: Mapping[str, Array],
    *,
    epsilon: float = 1e-6,
    count: int | None = None,
    above: float = 0.0,
    pattern: Callable[[], Mask] | None = None,
) -> Iterator[Coordinate]:
    """Compare gradients with differences.

    Args:
        f: the loss at the parameters' present values.
        params: name -> array that f reads.
        gradients: name -> gradient by hand, of the parameter's shape.
        epsilon: half the distance of the two points.
        count: at most so many coordinates of each parameter, the first ones; None for all.
        above: only coordinates with |g| > above: a relative error says nothing about a derivative of zero.
        pattern: which ReLUs let their input through at the present values, to find kinks; None for a smooth f.

    Returns:
        One coordinate after the other.
    """
    for name, theta in params.items():
        g = gradients[name].reshape(-1)
        for index in np.flatnonzero(np.abs(g) > above)[:count].tolist():
            n, by_hand = difference(f, theta, index, epsilon), float(g[index])
            larger = max(abs(n), abs(by_hand))
            error = abs(n - by_hand) / larger if larger else 0.0
            kink = False
            if pattern is not None:
                kink = not np.array_equal(*_both_sides(pattern, theta, index, epsilon))
            yield Coordinate(name, index, n, by_hand, error, kink)


def _both_sides(f: Callable[[], T], theta: Array, index: int, epsilon: float) -> tuple[T, T]:
    flat = theta.reshape(-1)
    if not np.shares_memory(flat, theta):
        raise InputError("difference: the array must be contiguous, so that changing it changes what f reads")
    before = flat[index]
    try:
        flat[index] = before + epsilon
        plus = f()
        flat[index] = before - epsilon
        return plus, f()
    finally:
        flat[index] = before
