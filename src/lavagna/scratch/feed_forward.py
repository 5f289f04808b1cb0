"""The feed-forward network of a block: each token by itself, through a wider layer and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from .arrays import Array
from .linear import linear, linear_backward

__all__ = ["FeedForwardRun", "feed_forward", "feed_forward_backward"]


class FeedForwardRun(NamedTuple):
    """What the backward needs: the input x (B, T, d) and a = ReLU(x W1 + b1) (B, T, d_ff)."""

    x: Array
    a: Array


def feed_forward(x: Array, p: Mapping[str, Array]) -> tuple[Array, FeedForwardRun]:
    """y = ReLU(x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2): (B, T, d) -> (B, T, d)."""
    a = linear(x, p["W1"], p["b1"])
    np.maximum(a, 0.0, out=a)
    return linear(a, p["W2"], p["b2"]), FeedForwardRun(x, a)


def feed_forward_backward(dy: Array, p: Mapping[str, Array], run: FeedForwardRun) -> tuple[Array, dict[str, Array]]:
    """dx and the gradients of W1, b1, W2, b2; ReLU passes on what it let through (0 at its kink)."""
    da, dW2, db2 = linear_backward(dy, run.a, p["W2"])
    da *= run.a > 0
    dx, dW1, db1 = linear_backward(da, run.x, p["W1"])
    return dx, {"W1": dW1, "b1": db1, "W2": dW2, "b2": db2}
