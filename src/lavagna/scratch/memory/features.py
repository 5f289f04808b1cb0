"""What is done to keys and queries before a memory sees them."""

from __future__ import annotations

import numpy as np

from ..arrays import Array

__all__ = ["dpfp", "elu1", "l2_normalised", "sum_normalised"]


def elu1(x: Array) -> Array:
    """φ(x) = elu(x) + 1 = e^x for x ≤ 0, x + 1 above: never zero, so that a sum over it can divide.

    Source: Katharopoulos et al. 2020, eq. 7.
    """
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def dpfp(x: Array, nu: int = 3) -> Array:
    """(..., K) -> (..., 2 ν K): φ(x) = r_i · r_{i+j}, j = 1..ν, r = relu([x, −x]), i + j taken cyclically.

    More channels than K, most of them zero: keys that point elsewhere share few of them.

    Source: Schlag et al. 2021.
    """
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    return np.concatenate([r * np.roll(r, -j, -1) for j in range(1, nu + 1)], -1)


def sum_normalised(x: Array) -> Array:
    """x / (Σ x + 1e-6), x ≥ 0: the features sum to one (Schlag et al. 2021); all zero they stay zero."""
    return x / (x.sum(-1, keepdims=True) + 1e-6)


def l2_normalised(x: Array) -> Array:
    """x / √(Σ x² + 1e-6): length one, so that β is the share of the error that is corrected (Yang et al. 2024)."""
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6)
