"""Gated DeltaNet: a memory that fades as a whole and corrects what it holds under a key."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.delta.api import gated_delta
from .base import Mixer
from .parts.conv import ShortConv
from .parts.gates import dt_bias, softplus_decay
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide
from .parts.precision import wide

__all__ = ["GatedDeltaNet", "GatedDeltaNetState"]


class GatedDeltaNetState(NamedTuple):
    """conv [B, W−1, 2·H·K + HV·V], the convolution's last inputs; memory [B, HV, K, V], S."""

    conv: Tensor
    memory: Tensor


class GatedDeltaNet(Mixer):
    """α_t (I − β_t k kᵀ) S + β_t k vᵀ (Yang, Kautz & Hatamizadeh 2024, equation 10).

        (q, k, v) = silu(conv(W_qkv x));  q, k ← q/‖q‖, k/‖k‖;  β = σ(W_b x)
        log α = −exp(A_log) · softplus(W_a x + dt_bias)
        y = W_out (RMSNorm(K^-0.5 Sᵀ q) ∘ silu(W_g x))

    Args:
        width: D.
        heads: H, heads of queries and keys.
        value_heads: HV, a multiple of H; default H. Value head h reads with key head h // (HV/H), as in Qwen3-Next.
        key_dim: K; default ¾ D/H rounded down, as published.
        value_dim: V; default 2K, as published.
        conv_taps: W of the short convolution.
        negative_eigenvalues: β = 2σ(·), so that I − β k kᵀ may reflect (Grazzi et al. 2024).
        norm_eps: of the output norm.

    Parameters: qkv_proj [2·H·K + HV·V, D] (q, k, v in this order, head by head), conv, a_proj and b_proj [HV, D],
        A_log and dt_bias [HV], gate_proj [HV·V, D], norm [V], out_proj [D, HV·V].

    Initialisation: exp(A_log) uniform in [.01, 16] (the authors' (0, 16) without what never fades) and
        softplus(dt_bias) log-uniform in [1e-3, 1e-1], as in Mamba-2.
    """

    state_class = GatedDeltaNetState
    recurrence = "α_t (I − β_t k kᵀ) S + β_t k vᵀ"
    survives = "a scalar gate and a Householder-like erase"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        value_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        conv_taps: int = 4,
        negative_eigenvalues: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("gated_deltanet", heads=heads, value_heads=value_heads, key_dim=key_dim, value_dim=value_dim)
        at_least_one("gated_deltanet", conv_taps=conv_taps)
        above_zero("gated_deltanet", norm_eps=norm_eps)
        value_heads = heads if value_heads is None else value_heads
        divide("gated_deltanet", "value_heads", value_heads, "heads", heads)
        key_dim = max(3 * width // (4 * heads), 1) if key_dim is None else key_dim
        value_dim = 2 * key_dim if value_dim is None else value_dim
        self.heads, self.value_heads, self.key_dim, self.value_dim = heads, value_heads, key_dim, value_dim
        self.beta_max = 2 if negative_eigenvalues else 1
        values = value_heads * value_dim
        self.sizes = [heads * key_dim, heads * key_dim, values]
        self.qkv_proj = Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), conv_taps, bias=False)
        self.a_proj = Linear(width, value_heads, bias=False)
        self.b_proj = Linear(width, value_heads, bias=False)
        self.A_log = nn.Parameter(torch.empty(value_heads).uniform_(1e-2, 16).log())
        self.dt_bias = nn.Parameter(dt_bias(value_heads))
        self.gate_proj = Linear(width, values, bias=False)
        self.norm = HeadNorm(value_dim, gate="silu", eps=norm_eps)
        self.out_proj = Linear(values, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> GatedDeltaNetState:
        memory = (batch_size, self.value_heads, self.key_dim, self.value_dim)
        return GatedDeltaNetState(
            self._zeros(batch_size, *self.conv.state_shape, dtype=dtype, device=device),
            self._zeros(*memory, dtype=dtype, device=device),
        )

    def mix(
        self, x: Tensor, state: GatedDeltaNetState | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, GatedDeltaNetState]:
        conv, memory = (None, None) if state is None else state
        qkv, conv = self.conv(self.qkv_proj(x), conv, cu_seqlens)
        q, k, v = qkv.split_with_sizes(self.sizes, -1)
        o, memory = gated_delta(
            q.unflatten(-1, (self.heads, self.key_dim)),
            k.unflatten(-1, (self.heads, self.key_dim)),
            v.unflatten(-1, (self.value_heads, self.value_dim)),
            self.beta_max * wide(self.b_proj(x)).sigmoid(),
            softplus_decay(self.a_proj(x), self.A_log, self.dt_bias),
            qk_l2norm=True,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        gate = self.gate_proj(x).unflatten(-1, (self.value_heads, self.value_dim))
        return self.out_proj(self.norm(o, gate).flatten(-2)), GatedDeltaNetState(conv, memory)
