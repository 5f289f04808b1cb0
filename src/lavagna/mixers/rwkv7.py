"""RWKV-7 (Goose), the time mix: a memory from which a key's content is taken out, each channel at a rate of its own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.dplr.api import generalized_delta
from .base import Mixer
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide
from .parts.precision import wide
from .parts.shift import previous_token, shift_weights

__all__ = ["RWKV7", "RWKV7State"]


class RWKV7State(NamedTuple):
    """last [B, D], the token before; memory [B, H, K, K], S."""

    last: Tensor
    memory: Tensor


class RWKV7(Mixer):
    """S_t = (Diag(w_t) − (κ_t ∘ η_t) κ_tᵀ) S_{t−1} + k̃_t v_tᵀ (Peng et al. 2025, Goose's time mix).

        x_■ = x_t + (x_{t−1} − x_t) ∘ μ_■  for each of r, w, k, v, a, g
        r, k, v = W_r x_r, W_k x_k, W_v x_v
        log w = −e^{−½} σ(w0 + B_w tanh(A_w x_w));  η = σ(η0 + B_a A_a x_a);  g = B_g σ(A_g x_g)
        κ = k ∘ ξ / ‖k ∘ ξ‖;  k̃ = k ∘ (1 + (η − 1) ∘ α)
        y = W_out ((LayerNorm(Sᵀ r) + (r · (ρ ∘ k̃)) v) ∘ g)

    Args:
        width: D.
        heads: H; K = V = D/H.
        rank: rows of A_w and A_a; default 2.5 √D rounded to a multiple of 32, at least 32.
        gate_rank: rows of A_g; default 5 √D, rounded in the same way.
        norm_eps: of the norm of each head's output.

    Parameters: mu [6, D] (of r, w, k, v, a, g in this order), r_proj, k_proj, v_proj, out_proj [D, D], decay [D] (w0),
        decay_down [rank, D], decay_up [D, rank], rate [D] (η0), rate_down [rank, D], rate_up [D, rank],
        gate_down [gate_rank, D], gate_up [D, gate_rank], removal [H, K] (ξ), replacement [H, K] (α), bonus [H, K] (ρ),
        norm [H, K].

    Initialisation: the authors', which changes with the layer's depth, at the middle depth: with n = i/(D−1),
        l = n − ½ and z from −1 to 1 over a head's channels, then squared with its sign kept,
        w0 = −5.5 + 6 n^(1 + .5^.3) + 2.5 z; η0 = −.19 + .3 z + .4 l; ξ = .71 − .1 l; α = 1.02; ρ = −.04;
        μ_r, μ_g = 1 − (i/D)^.1; μ_w, μ_a = 1 − (i/D)^.45; μ_k, μ_v = 1 − (i/D)^.35; every A zero, every B
        orthogonal, .1 times; W_r and W_v uniform in ±.5 D^-½, W_k in ±.05 D^-½, W_out zero.

    Differs: the authors' layers after the first mix their values with those of the first layer; a mixer sees its own
        input alone, so that is left out. Their channel mix has no receptance gate; RWKV-6's stands in its place.
    """

    state_class = RWKV7State
    recurrence = "(Diag(α_t) − (κ ∘ η) κᵀ) S + k vᵀ"
    survives = "one gate per key channel and a rank-one erase"
    published_mlp = "channel_mix"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        rank: int | None = None,
        gate_rank: int | None = None,
        norm_eps: float = 64e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("rwkv7", heads=heads, rank=rank, gate_rank=gate_rank)
        above_zero("rwkv7", norm_eps=norm_eps)
        self.heads, self.head_dim = heads, divide("rwkv7", "width", width, "heads", heads)
        rank = _rank(2.5, width) if rank is None else rank
        gate_rank = _rank(5, width) if gate_rank is None else gate_rank
        per_head = (heads, self.head_dim)

        powers = (0.1, 0.45, 0.35, 0.35, 0.45, 0.1)
        self.mu = nn.Parameter(torch.stack([shift_weights(width, power) for power in powers]))
        n = torch.arange(width) / max(width - 1, 1)
        linear = n - 0.5
        ramp = 2 * torch.arange(self.head_dim) / max(self.head_dim - 1, 1) - 1
        zigzag = (ramp * ramp.abs()).repeat(heads)
        self.decay = nn.Parameter(-5.5 + 6 * n ** (1 + 0.5**0.3) + 2.5 * zigzag)
        self.decay_down, self.decay_up = _low_rank(width, rank)
        self.rate = nn.Parameter(-0.19 + 0.3 * zigzag + 0.4 * linear)
        self.rate_down, self.rate_up = _low_rank(width, rank)
        self.gate_down, self.gate_up = _low_rank(width, gate_rank)
        self.removal = nn.Parameter((0.71 - 0.1 * linear).unflatten(0, per_head))
        self.replacement = nn.Parameter(torch.full(per_head, 1.02))
        self.bonus = nn.Parameter(torch.full(per_head, -0.04))
        self.r_proj = _uniform(width, 0.5)
        self.k_proj = _uniform(width, 0.05)
        self.v_proj = _uniform(width, 0.5)
        self.norm = HeadNorm(self.head_dim, heads=heads, kind="layernorm", eps=norm_eps)
        self.out_proj = _uniform(width, 0.0)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> RWKV7State:
        memory = (batch_size, self.heads, self.head_dim, self.head_dim)
        return RWKV7State(
            self._zeros(batch_size, self.width, dtype=dtype, device=device),
            self._zeros(*memory, dtype=dtype, device=device),
        )

    def mix(self, x: Tensor, state: RWKV7State | None, cu_seqlens: Tensor | None) -> tuple[Tensor, RWKV7State]:
        last, memory = (None, None) if state is None else state
        before, last = previous_token(x, last, cu_seqlens)
        x_r, x_w, x_k, x_v, x_a, x_g = (x + (before - x) * self.mu[:, None, None]).unbind()
        per_head = (self.heads, self.head_dim)
        r, k, v = (
            project(y).unflatten(-1, per_head)
            for project, y in ((self.r_proj, x_r), (self.k_proj, x_k), (self.v_proj, x_v))
        )
        w = wide(self.decay) + wide(self.decay_up(self.decay_down(x_w).tanh()))
        rate = (wide(self.rate) + wide(self.rate_up(self.rate_down(x_a)))).sigmoid().unflatten(-1, per_head)
        removed = wide(k) * wide(self.removal)
        # 1e-12 against a key of zero; the square root of the sum, so that its gradient there is finite
        removed = removed * (removed.square().sum(-1, keepdim=True) + 1e-12).rsqrt()
        written = wide(k) * (1 + (rate - 1) * wide(self.replacement))
        o, memory = generalized_delta(
            r,
            written,
            v,
            -removed,
            removed * rate,
            -math.exp(-0.5) * w.sigmoid().unflatten(-1, per_head),
            scale=1.0,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        now = (wide(r) * wide(self.bonus) * written).sum(-1, keepdim=True) * wide(v)
        y = (wide(self.norm(o)) + now).flatten(-2).to(o.dtype) * self.gate_up(self.gate_down(x_g).sigmoid())
        return self.out_proj(y), RWKV7State(last, memory)


def _rank(factor: float, width: int) -> int:
    """The authors' choice: factor · √D to the nearest multiple of 32, at least 32."""
    return max(32, 32 * round(factor * width**0.5 / 32))


def _low_rank(width: int, rank: int) -> tuple[Linear, Linear]:
    """A [rank, D] of zeros and an orthogonal B [D, rank], .1 times (more where it has more columns than rows)."""
    down, up = Linear(width, rank, bias=False), Linear(rank, width, bias=False)
    nn.init.zeros_(down.weight)
    nn.init.orthogonal_(up.weight, gain=0.1 * max(1.0, rank / width) ** 0.5)
    return down, up


def _uniform(width: int, bound: float) -> Linear:
    """W [D, D] uniform in ±bound · D^-½."""
    projection = Linear(width, width, bias=False)
    nn.init.uniform_(projection.weight, -bound * width**-0.5, bound * width**-0.5)
    return projection
