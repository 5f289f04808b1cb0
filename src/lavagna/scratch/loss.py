"""Cross-entropy, weighted on chosen positions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .arrays import Array, Tokens, expect

__all__ = ["LossRun", "cross_entropy", "cross_entropy_backward"]


class LossRun(NamedTuple):
    """What the backward needs: p (N, vocab), the targets (N,), each row's share w/Σw (N,) and the logits' shape."""

    p: Array
    targets: Tokens
    w: Array
    shape: tuple[int, ...]


def cross_entropy(logits: Array, targets: Tokens, weights: Array) -> tuple[float, LossRun]:
    """How surprised the predictions are by the targets, on average over the weights.

        L = −Σ_t w_t ln p_t[target_t] / Σ_t w_t,  p = softmax(logits)

    Args:
        logits: (B, T, vocab).
        targets: (B, T), the right token after each position.
        weights: (B, T), ≥ 0: 1 where the prediction counts, 0 where it does not.

    Returns:
        L, and what the backward needs.

    Raises:
        InputError: no position counts.

    Numerics:
        ln p is (z − max) − ln Σ e^{z − max}: exact where p itself would underflow.
    """
    B, T, vocab = logits.shape
    expect("cross_entropy", "targets", targets, B, T)
    expect("cross_entropy", "weights", weights, B, T)
    total = float(weights.sum())
    if not total > 0:
        raise InputError(f"cross_entropy: the weights must have a positive sum, got {total}")
    w, y = weights.reshape(-1) / total, targets.reshape(-1)
    z = logits.reshape(-1, vocab)
    z = z - z.max(-1, keepdims=True)
    p = np.exp(z)
    sums = p.sum(-1, keepdims=True)
    p /= sums
    right = np.arange(len(y)), y
    log_p = z[right] - np.log(sums[:, 0])
    return -float(w @ log_p), LossRun(p, y, w, logits.shape)


def cross_entropy_backward(run: LossRun) -> Array:
    """∂L/∂logits = w/Σw · (p − onehot(target)), (B, T, vocab)."""
    dz = run.p * run.w[:, None]
    dz[np.arange(len(run.targets)), run.targets] -= run.w
    return dz.reshape(run.shape)
