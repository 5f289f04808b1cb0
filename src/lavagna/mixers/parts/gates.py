"""Decays that depend on the token, and how their biases begin."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.constants import constant
from .linear import Linear
from .precision import wide

__all__ = ["LowRank", "dt_bias", "negative_exponential", "softplus_decay"]


def dt_bias(size: int, low: float = 1e-3, high: float = 1e-1, floor: float = 1e-4) -> Tensor:
    """Draw b [size] such that softplus(b) is log-uniform in [low, high] (Gu & Dao 2023, section 3.6).

    The inverse of softplus is y + log(1 − e^−y), whose terms neither overflow nor cancel.
    """
    dt = torch.exp(torch.empty(size).uniform_(math.log(low), math.log(high))).clamp(min=floor)
    return dt + torch.log(-torch.expm1(-dt))


def negative_exponential(A_log: Tensor) -> Tensor:
    """−exp(A_log), in float32 at least."""
    return -wide(A_log).exp()


def softplus_decay(logits: Tensor, A_log: Tensor, bias: Tensor) -> Tensor:
    """log_decay = −exp(A_log) · softplus(logits + bias), in float32 at least.

    Args:
        logits: [..., H] or [..., H, K].
        A_log: as the last dimensions of `logits`, or able to broadcast to them.
        bias: the same.

    Source:
        Mamba-2 (Dao & Gu 2024): the decay exp(Δ A) with A = −exp(A_log) and Δ = softplus(logits + bias).
    """
    return constant(A_log, negative_exponential) * F.softplus(wide(logits) + wide(bias))


class LowRank(nn.Module):
    """y = W_up W_down x (+ b): a projection whose matrix has rank `rank`.

    Parameters: down [rank, in], up [out, rank].
    """

    def __init__(self, in_features: int, rank: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.down = Linear(in_features, rank, bias=False)
        self.up = Linear(rank, out_features, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))
