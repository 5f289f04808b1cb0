"""Softmax: scores become weights that are positive and sum to one."""

from __future__ import annotations

import numpy as np

from .arrays import Array

__all__ = ["softmax", "softmax_backward"]


def softmax(x: Array) -> Array:
    """Weights of the last axis.

        p_i = e^{x_i − m} / Σ_j e^{x_j − m},  m = max_j x_j

    Args:
        x: (..., n), −∞ allowed.

    Returns:
        (..., n). A row of −∞ alone has nothing to weigh: zeros, not 0/0.

    Numerics:
        m cancels, and no exponent is positive: nothing overflows.
    """
    m = x.max(-1, keepdims=True)
    m[m == -np.inf] = 0.0
    p = x - m
    np.exp(p, out=p)
    total = p.sum(-1, keepdims=True)
    total[total == 0.0] = 1.0
    p /= total
    return p


def softmax_backward(dp: Array, p: Array) -> Array:
    """The gradient of x, from that of p.

        ∂p_i/∂x_j = p_i (δ_ij − p_j)      the Jacobian of a row, n × n
        dx_j = Σ_i dp_i p_i (δ_ij − p_j) = p_j (dp_j − Σ_i dp_i p_i)

    Contracted like this the Jacobian is never built.

    Args:
        dp: (..., n), ∂L/∂p.
        p: (..., n), what softmax returned.

    Returns:
        (..., n), ∂L/∂x.
    """
    dx = dp * p
    dx -= p * dx.sum(-1, keepdims=True)
    return dx
