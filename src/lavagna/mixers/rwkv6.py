"""RWKV-6 (Finch), the time mix: a memory with a decay for each key channel, and a bonus for the current token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.linear.api import gated_linear
from .base import Mixer
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide
from .parts.precision import wide
from .parts.shift import previous_token, shift_weights

__all__ = ["RWKV6", "RWKV6State"]


class RWKV6State(NamedTuple):
    """last [B, D], the token before; memory [B, H, K, K], S."""

    last: Tensor
    memory: Tensor


class RWKV6(Mixer):
    """S_t = Diag(e^{−exp(w_t)}) S_{t−1} + k_t v_tᵀ (Peng et al. 2024, Finch's time mix).

        o_t = (S_{t−1} + (u ∘ k_t) v_tᵀ)ᵀ r_t;  y = W_out (LayerNorm(o) ∘ silu(W_g x_g))

    Each of r, k, v, g and w is made of its own mixture of the token and the one before (data-dependent shift):

        x_■ = x_t + (x_{t−1} − x_t) ∘ (μ_■ + tanh((x_t + (x_{t−1} − x_t) ∘ μ_x) A_■) B_■)
        w = w0 + tanh(x_w A_w) B_w

    Args:
        width: D.
        heads: H; K = V = D/H.
        shift_rank: columns of each A_■.
        decay_rank: columns of A_w.
        norm_eps: of the norm of each head's output.

    Parameters: mu_x [D], mu [5, D] (of w, k, v, r, g in this order), shift_down [5·shift_rank, D],
        shift_up [5, shift_rank, D], decay [D] (w0), decay_down [decay_rank, D], decay_up [D, decay_rank],
        bonus [H, K] (u), r_proj, k_proj, v_proj, gate_proj, out_proj [D, D], norm [H, K].

    Initialisation: of the parameters named here the authors', which changes with the layer's depth, at the middle
        depth; the others have torch's. With n = i/(D−1): w0 = −6 + 5 n^1.35; u = (1 − n)/2 + ((i + 1) mod 3 − 1)/10;
        μ_x, μ_w, μ_k = 1 − (i/D)^½, μ_v the same − .15, μ_r, μ_g = 1 − (i/D)^¼; every A zero and every B uniform
        in ±.01.
    """

    state_class = RWKV6State
    recurrence = "Diag(α_t) S + k vᵀ"
    survives = "one gate per key channel"
    published_mlp = "channel_mix"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        shift_rank: int = 32,
        decay_rank: int = 64,
        norm_eps: float = 64e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("rwkv6", heads=heads, shift_rank=shift_rank, decay_rank=decay_rank)
        above_zero("rwkv6", norm_eps=norm_eps)
        self.heads, self.head_dim = heads, divide("rwkv6", "width", width, "heads", heads)
        middle = shift_weights(width, 0.5)
        late = shift_weights(width, 0.25)
        self.mu_x = nn.Parameter(middle.clone())
        self.mu = nn.Parameter(torch.stack([middle, middle, shift_weights(width, 0.5, 0.15), late, late]))
        self.shift_down = Linear(width, 5 * shift_rank, bias=False)
        self.shift_up = nn.Parameter(torch.empty(5, shift_rank, width).uniform_(-0.01, 0.01))
        i = torch.arange(width)
        n = i / max(width - 1, 1)
        self.decay = nn.Parameter(-6 + 5 * n**1.35)
        self.decay_down = Linear(width, decay_rank, bias=False)
        self.decay_up = Linear(decay_rank, width, bias=False)
        nn.init.zeros_(self.shift_down.weight)
        nn.init.zeros_(self.decay_down.weight)
        nn.init.uniform_(self.decay_up.weight, -0.01, 0.01)
        bonus = (1 - n) / 2 + ((i + 1) % 3 - 1) / 10
        self.bonus = nn.Parameter(bonus.unflatten(0, (heads, self.head_dim)))
        self.r_proj = Linear(width, width, bias=False)
        self.k_proj = Linear(width, width, bias=False)
        self.v_proj = Linear(width, width, bias=False)
        self.gate_proj = Linear(width, width, bias=False)
        self.norm = HeadNorm(self.head_dim, heads=heads, kind="layernorm", gate="silu", eps=norm_eps)
        self.out_proj = Linear(width, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> RWKV6State:
        memory = (batch_size, self.heads, self.head_dim, self.head_dim)
        return RWKV6State(
            self._zeros(batch_size, self.width, dtype=dtype, device=device),
            self._zeros(*memory, dtype=dtype, device=device),
        )

    def mix(self, x: Tensor, state: RWKV6State | None, cu_seqlens: Tensor | None) -> tuple[Tensor, RWKV6State]:
        last, memory = (None, None) if state is None else state
        before, last = previous_token(x, last, cu_seqlens)
        x_w, x_k, x_v, x_r, x_g = self._shifted(x, before - x)
        per_head = (self.heads, self.head_dim)
        w = wide(self.decay) + wide(self.decay_up(self.decay_down(x_w).tanh()))
        o, memory = gated_linear(
            self.r_proj(x_r).unflatten(-1, per_head),
            self.k_proj(x_k).unflatten(-1, per_head),
            self.v_proj(x_v).unflatten(-1, per_head),
            -w.exp().unflatten(-1, per_head),
            self.bonus,
            scale=1.0,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        y = self.norm(o, self.gate_proj(x_g).unflatten(-1, per_head))
        return self.out_proj(y.flatten(-2)), RWKV6State(last, memory)

    def _shifted(self, x: Tensor, step: Tensor) -> tuple[Tensor, ...]:
        """The five mixtures of a token x and the one before it, x + step; each [B, T, D]."""
        low = self.shift_down(x + step * self.mu_x).tanh().unflatten(-1, (5, -1))
        learned = torch.einsum("btsr,srd->sbtd", low, self.shift_up.to(low.dtype))
        return (x + step * (self.mu[:, None, None] + learned)).unbind()
