"""y = x W + b, and ReLU: the two parts of a feed-forward network."""

from __future__ import annotations

from .arrays import Array

__all__ = ["linear", "linear_backward"]


def linear(x: Array, W: Array, b: Array) -> Array:
    """x (..., n), W (n, m), b (m,) -> (..., m)."""
    y = rows(x) @ W  # one product of two matrices, whatever the leading axes
    y += b
    return y.reshape(*x.shape[:-1], -1)


def linear_backward(dy: Array, x: Array, W: Array) -> tuple[Array, Array, Array]:
    """dx = dy Wᵀ, dW = xᵀ dy and db = Σ dy, the sums over all rows."""
    dy_rows = rows(dy)
    return (dy_rows @ W.T).reshape(x.shape), rows(x).T @ dy_rows, dy_rows.sum(0)


def rows(x: Array) -> Array:
    """(..., n) -> (product of the others, n)."""
    return x.reshape(-1, x.shape[-1])
