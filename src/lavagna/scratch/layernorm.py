"""LayerNorm: each token's channels are centred and brought to variance one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import Array

__all__ = ["EPSILON", "LayerNormRun", "layernorm", "layernorm_backward"]

EPSILON = 1e-5  # added to the variance


class LayerNormRun(NamedTuple):
    """What the backward needs: x̂ (..., d) and 1/σ (..., 1)."""

    x_hat: Array
    inverse_sigma: Array


def layernorm(x: Array, gamma: Array, beta: Array) -> tuple[Array, LayerNormRun]:
    """Normalise the last axis (Ba et al. 2016).

        μ = mean(x),  σ² = mean((x − μ)²) + ε,  x̂ = (x − μ)/σ,  y = γ ∘ x̂ + β

    Args:
        x: (..., d).
        gamma, beta: (d,), gain and bias.
    """
    d = x.shape[-1]
    x_hat = x - x.sum(-1, keepdims=True) / d
    variance = np.einsum("...i,...i->...", x_hat, x_hat)[..., None] / d
    inverse_sigma = 1 / np.sqrt(variance + EPSILON)
    x_hat *= inverse_sigma
    y = x_hat * gamma
    y += beta
    return y, LayerNormRun(x_hat, inverse_sigma)


def layernorm_backward(dy: Array, gamma: Array, run: LayerNormRun) -> tuple[Array, Array, Array]:
    """The gradients of x, γ, β.

        dγ = Σ dy ∘ x̂,  dβ = Σ dy,  with dx̂ = γ ∘ dy:
        dx = (dx̂ − mean(dx̂) − x̂ · mean(dx̂ ∘ x̂)) / σ

    μ and σ depend on every channel. Changing x along the constant vector or along x̂ moves them alone and leaves x̂ as it
    is (as far as ε allows): the two means take those two directions out of the gradient.
    """
    x_hat, inverse_sigma = run
    d = dy.shape[-1]
    product = (dy * x_hat).reshape(-1, d)
    dgamma, dbeta = product.sum(0), dy.reshape(-1, d).sum(0)
    dx = dy * gamma
    mean = dx.sum(-1, keepdims=True) / d
    along = np.einsum("...i,...i->...", dx, x_hat)[..., None] / d
    dx -= mean
    dx -= x_hat * along
    dx *= inverse_sigma
    return dx, dgamma, dbeta
