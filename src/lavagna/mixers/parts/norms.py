"""Norms over the channels of a head, with the gate that goes with the one on a mixer's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .precision import wide

__all__ = ["HeadNorm", "Norm", "OptionalNorm"]

Norm = Literal["rmsnorm", "layernorm"]
OptionalNorm = Literal["rmsnorm", "layernorm", "none"]

GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}


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
        self.gate, self.gate_first = GATES[gate], gate_first
        self.weight = nn.Parameter(torch.ones(shape))
        self.bias = nn.Parameter(torch.zeros(shape)) if kind == "layernorm" else None

    def forward(self, o: Tensor, gate: Tensor | None = None) -> Tensor:
        """o and gate_logits [..., heads, size] -> the same shape, in o's dtype."""
        y = wide(o)
        factor = None if gate is None else self.gate(wide(gate))
        if factor is not None and self.gate_first:
            y = y * factor
        if self.bias is None:
            y = F.rms_norm(y, (self.size,), eps=self.eps) * wide(self.weight)
        else:
            y = F.layer_norm(y, (self.size,), eps=self.eps) * wide(self.weight) + wide(self.bias)
        if factor is not None and not self.gate_first:
            y = y * factor
        return y.to(o.dtype)
