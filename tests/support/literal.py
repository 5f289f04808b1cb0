"""Lines of the papers that literal forms of several mixers share; one row [T, ...] at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lavagna.mixers.parts.conv import ShortConv
from lavagna.mixers.parts.norms import HeadNorm

__all__ = ["convolved", "normed", "unit"]


def convolved(conv: ShortConv, x: Tensor) -> Tensor:
    """silu(b + Σ_w weight_w x_{t−W+1+w}) for x [T, D]."""
    taps = conv.weight.shape[1]
    rows = []
    for t in range(len(x)):
        y = torch.zeros_like(x[0]) if conv.bias is None else conv.bias
        for w in range(taps):
            s = t - taps + 1 + w
            if s >= 0:
                y = y + conv.weight[:, w] * x[s]
        rows.append(y * torch.sigmoid(y))
    return torch.stack(rows)


def unit(x: Tensor) -> Tensor:
    """x / sqrt(Σx² + 1e-6) over the last dimension."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def normed(norm: HeadNorm, o: Tensor) -> Tensor:
    """A norm over the last dimension, without its gate."""
    centred = o - o.mean(-1, keepdim=True) if norm.bias is not None else o
    y = centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + norm.eps) * norm.weight
    return y if norm.bias is None else y + norm.bias
