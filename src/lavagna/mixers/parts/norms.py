"""Norms over the channels of a head, with the gate that goes with the one on a mixer's output; over a whole token."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...ops.rms_norm import GATES, rms_norm
from .precision import wide

__all__ = ["HeadNorm", "Norm", "OptionalNorm", "RMSNorm"]

Norm = Literal["rmsnorm", "layernorm"]
OptionalNorm = Literal["rmsnorm", "layernorm", "none"]


class HeadNorm(nn.Module):
    """y = norm(o) ∘ act(gate) over each head alone, or norm(o ∘ act(gate)); without a gate, norm(o).

    Args:
        size: channels that are normalised together.
        heads: None for one weight shared by all heads, or their number for a weight each.
        kind: "rmsnorm": w ∘ o / rms(o); "layernorm": w ∘ (o − mean) / deviation + b.
        gate: the gate's function, "silu" or "sigmoid".
        gate_first: apply the gate before the norm.
        eps: added to the mean square or the variance.

    Parameters: weight [size] or [heads, size], ones; bias of the same shape, zeros (layernorm alone).

    Numerics: float32 (float64 for float64) until the result, which has o's dtype.
    """

    def __init__(
        self,
        size: int,
        *,
        heads: int | None = None,
        kind: Norm = "rmsnorm",
        gate: Literal["silu", "sigmoid"] = "silu",
        gate_first: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        shape = (size,) if heads is None else (heads, size)
        self.size, self.kind, self.eps = size, kind, eps
        self.gate, self.gate_first = gate, gate_first
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if kind == "layernorm" else None

    def forward(self, o: Tensor, gate: Tensor | None = None) -> Tensor:
        """o and gate_logits [..., heads, size] -> the same shape, in o's dtype."""
        y = wide(o)
        gate = None if gate is None else wide(gate)
        if self.bias is None:
            y = rms_norm(y, self.weight, gate, act=self.gate, gate_first=self.gate_first, eps=self.eps)
            return y.to(o.dtype)
        factor = None if gate is None else GATES[self.gate](gate)
        if factor is not None and self.gate_first:
            y = y * factor
        y = F.layer_norm(y, (self.size,), eps=self.eps) * wide(self.weight) + wide(self.bias)
        if factor is not None and not self.gate_first:
            y = y * factor
        return y.to(o.dtype)


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm over the last dimension, with a weight, on the native kernel where there is one."""

    eps: float

    def __init__(self, size: int, *, eps: float) -> None:
        super().__init__(size, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., size] -> the same shape and dtype; computed in float32, or float64 for float64."""
        return rms_norm(wide(x), self.weight, eps=self.eps).to(x.dtype)
