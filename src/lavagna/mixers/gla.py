"""GLA: a memory whose every key channel fades at a rate of its own, from the token."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops.linear.api import gated_linear
from .base import Mixer
from .parts.gates import LowRank
from .parts.linear import Linear
from .parts.norms import HeadNorm, Norm
from .parts.options import above_zero, at_least_one, divide, one_of
from .parts.precision import wide

__all__ = ["GLA", "GLAState"]


class GLAState(NamedTuple):
    """memory [B, H, K, V], S."""

    memory: Tensor


class GLA(Mixer):
    """S_t = Diag(α_t) S_{t−1} + k_t v_tᵀ (Yang et al. 2023, section 4).

        α = σ(W_α2 W_α1 x + b_α)^(1/τ);  y = W_out (silu(W_g x + b_g) ∘ norm(K^-0.5 Sᵀ q))

    Args:
        width: D.
        heads: H.
        key_dim: K; default D/2H, as published.
        value_dim: V; default D/H.
        gate_rank: rows of W_α1.
        temperature: τ; the larger, the slower the memory fades at first.
        norm: of each head's output: the paper's "layernorm", or "rmsnorm" as checkpoints have it.
        norm_eps: of that norm.
        gate_bias: with b_g.

    Parameters: q_proj and k_proj [H·K, D], v_proj [H·V, D], decay_proj.{down [rank, D], up [H·K, rank] with bias},
        gate_proj [H·V, D], norm [V], out_proj [D, H·V].
    """

    state_class = GLAState
    recurrence = "Diag(α_t) S + k vᵀ"
    survives = "one gate per key channel"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        key_dim: int | None = None,
        value_dim: int | None = None,
        gate_rank: int = 16,
        temperature: float = 16.0,
        norm: Norm = "layernorm",
        norm_eps: float = 1e-5,
        gate_bias: bool = True,
    ) -> None:
        super().__init__(width)
        at_least_one("gla", heads=heads, key_dim=key_dim, value_dim=value_dim, gate_rank=gate_rank)
        above_zero("gla", temperature=temperature, norm_eps=norm_eps)
        one_of("gla", Norm, norm=norm)
        self.heads, self.temperature = heads, temperature
        self.key_dim = divide("gla", "width", width, "2 heads", 2 * heads) if key_dim is None else key_dim
        self.value_dim = divide("gla", "width", width, "heads", heads) if value_dim is None else value_dim
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.q_proj = Linear(width, keys, bias=False)
        self.k_proj = Linear(width, keys, bias=False)
        self.v_proj = Linear(width, values, bias=False)
        self.decay_proj = LowRank(width, gate_rank, keys, bias=True)
        self.gate_proj = Linear(width, values, bias=gate_bias)
        self.norm = HeadNorm(self.value_dim, kind=norm, gate="silu", eps=norm_eps)
        self.out_proj = Linear(values, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> GLAState:
        memory = (batch_size, self.heads, self.key_dim, self.value_dim)
        return GLAState(self._zeros(*memory, dtype=dtype, device=device))

    def mix(self, x: Tensor, state: GLAState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, GLAState]:
        keys, values = (self.heads, self.key_dim), (self.heads, self.value_dim)
        o, memory = gated_linear(
            self.q_proj(x).unflatten(-1, keys),
            self.k_proj(x).unflatten(-1, keys),
            self.v_proj(x).unflatten(-1, values),
            F.logsigmoid(wide(self.decay_proj(x))).unflatten(-1, keys) / self.temperature,
            state=None if state is None else state.memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        y = self.norm(o, self.gate_proj(x).unflatten(-1, values))
        return self.out_proj(y.flatten(-2)), GLAState(memory)
