"""KDA (Kimi Delta Attention): each key channel fades at a rate of its own, and what a key holds is corrected."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.delta.api import gated_delta
from .base import Mixer
from .parts.conv import ShortConv
from .parts.gates import LowRank, dt_bias, softplus_decay
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide
from .parts.precision import wide

__all__ = ["KDA", "KDAState"]


class KDAState(NamedTuple):
    """conv [B, W−1, 2·H·K + H·V], the convolution's last inputs; memory [B, H, K, V], S."""

    conv: Tensor
    memory: Tensor


class KDA(Mixer):
    """S_t = (I − β_t k kᵀ) Diag(α_t) S_{t−1} + β_t k vᵀ (Kimi Team 2025, equation 1).

        (q, k, v) = silu(conv(W_qkv x));  q, k ← q/‖q‖, k/‖k‖;  β = σ(W_b x)
        log α = −exp(A_log) · softplus(W_α2 W_α1 x + dt_bias), A_log one a head
        y = W_out (RMSNorm(K^-0.5 Sᵀ q) ∘ σ(W_g2 W_g1 x))

    Args:
        width: D.
        heads: H.
        key_dim: K; default D/H.
        value_dim: V; default K.
        conv_taps: W of the short convolution.
        rank: rows of W_α1 and W_g1; default V, as published.
        norm_eps: of the output norm.

    Parameters: qkv_proj [H·(2K + V), D] (q, k, v in this order, head by head), conv, b_proj [H, D],
        decay_proj.{down [rank, D], up [H·K, rank]}, A_log [H], dt_bias [H, K], gate_proj.{down [rank, D],
        up [H·V, rank]}, norm [V], out_proj [D, H·V].

    Initialisation: exp(A_log) uniform in [1, 16] and softplus(dt_bias) log-uniform in [1e-3, 1e-1].
    """

    state_class = KDAState
    recurrence = "(I − β_t k kᵀ) Diag(α_t) S + β_t k vᵀ"
    survives = "one gate per key channel, then a Householder-like erase"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        key_dim: int | None = None,
        value_dim: int | None = None,
        conv_taps: int = 4,
        rank: int | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("kda", heads=heads, key_dim=key_dim, value_dim=value_dim, conv_taps=conv_taps, rank=rank)
        above_zero("kda", norm_eps=norm_eps)
        key_dim = divide("kda", "width", width, "heads", heads) if key_dim is None else key_dim
        value_dim = key_dim if value_dim is None else value_dim
        rank = value_dim if rank is None else rank
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        keys, values = heads * key_dim, heads * value_dim
        self.sizes = [keys, keys, values]
        self.qkv_proj = Linear(width, sum(self.sizes), bias=False)
        self.conv = ShortConv(sum(self.sizes), conv_taps, bias=False)
        self.b_proj = Linear(width, heads, bias=False)
        self.decay_proj = LowRank(width, rank, keys)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.dt_bias = nn.Parameter(dt_bias(keys).unflatten(0, (heads, key_dim)))
        self.gate_proj = LowRank(width, rank, values)
        self.norm = HeadNorm(value_dim, gate="sigmoid", eps=norm_eps)
        self.out_proj = Linear(values, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> KDAState:
        memory = (batch_size, self.heads, self.key_dim, self.value_dim)
        return KDAState(
            self._zeros(batch_size, *self.conv.state_shape, dtype=dtype, device=device),
            self._zeros(*memory, dtype=dtype, device=device),
        )

    def mix(self, x: Tensor, state: KDAState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, KDAState]:
        conv, memory = (None, None) if state is None else state
        qkv, conv = self.conv(self.qkv_proj(x), conv, cu_seqlens)
        q, k, v = qkv.split_with_sizes(self.sizes, -1)
        keys, values = (self.heads, self.key_dim), (self.heads, self.value_dim)
        o, memory = gated_delta(
            q.unflatten(-1, keys),
            k.unflatten(-1, keys),
            v.unflatten(-1, values),
            wide(self.b_proj(x)).sigmoid(),
            softplus_decay(self.decay_proj(x).unflatten(-1, keys), self.A_log[:, None], self.dt_bias),
            qk_l2norm=True,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        y = self.norm(o, self.gate_proj(x).unflatten(-1, values))
        return self.out_proj(y.flatten(-2)), KDAState(conv, memory)
