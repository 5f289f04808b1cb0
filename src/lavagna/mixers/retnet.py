"""RetNet: a memory that fades at a constant rate, a different one for each head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..ops.linear.api import gated_linear
from .base import Mixer, state_dtype
from .parts.linear import Linear
from .parts.norms import HeadNorm, Norm
from .parts.options import above_zero, at_least_one, divide, one_of
from .parts.positions import Position, positions, rotate

__all__ = ["RetNet", "RetNetState"]


class RetNetState(NamedTuple):
    """memory [B, H, K, V], S; seen int64 [B], the tokens read (None without positions)."""

    memory: Tensor
    seen: Tensor | None


class RetNet(Mixer):
    """S_t = γ_h S_{t−1} + k_t v_tᵀ with γ_h = 1 − 2^(−5−h) (Sun et al. 2023, equations 3 to 8).

        q, k = W_q x, W_k x turned by rotary positions;  y = W_out (silu(W_g x) ∘ norm(K^-0.5 Sᵀ q))

    The paper's positions are xPos, whose decay is γ here, so that the rotation is what is left. Its normalisation
    of scores (section 2.1, "Retention Score Normalization") cancels in the norm and is left out.

    Args:
        width: D.
        heads: H.
        key_dim: K; default D/H.
        value_dim: V; default 2K, as published.
        position: "rotary" or "none".
        rope_theta: base of the wavelengths.
        norm: of each head's output; the paper's GroupNorm is "layernorm", its authors' code has "rmsnorm".
        norm_eps: of that norm.

    Parameters: q_proj and k_proj [H·K, D], v_proj and gate_proj [H·V, D], norm [V], out_proj [D, H·V].
    """

    state_class = RetNetState
    recurrence = "γ_h S + k vᵀ"
    survives = "a constant scalar per head"
    published_mlp = "gelu"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        key_dim: int | None = None,
        value_dim: int | None = None,
        position: Position = "rotary",
        rope_theta: float = 10000.0,
        norm: Norm = "layernorm",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("retnet", heads=heads, key_dim=key_dim, value_dim=value_dim)
        above_zero("retnet", rope_theta=rope_theta, norm_eps=norm_eps)
        one_of("retnet", Position, position=position)
        one_of("retnet", Norm, norm=norm)
        key_dim = divide("retnet", "width", width, "heads", heads) if key_dim is None else key_dim
        value_dim = 2 * key_dim if value_dim is None else value_dim
        if position == "rotary" and key_dim % 2:
            raise ConfigError(f"retnet: key_dim must be even for rotary positions, got {key_dim}")
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.position, self.rope_theta = position, rope_theta
        self.q_proj = Linear(width, heads * key_dim, bias=False)
        self.k_proj = Linear(width, heads * key_dim, bias=False)
        self.v_proj = Linear(width, heads * value_dim, bias=False)
        self.gate_proj = Linear(width, heads * value_dim, bias=False)
        self.norm = HeadNorm(value_dim, kind=norm, gate="silu", eps=norm_eps)
        self.out_proj = Linear(heads * value_dim, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> RetNetState:
        memory = self._zeros(batch_size, self.heads, self.key_dim, self.value_dim, dtype=dtype, device=device)
        if self.position == "none":
            return RetNetState(memory, None)
        return RetNetState(memory, torch.zeros(batch_size, dtype=torch.int64, device=memory.device))

    def log_decay(self, like: Tensor) -> Tensor:
        """log γ [H], in the precision and on the device of a state beside `like`."""
        h = torch.arange(self.heads, dtype=state_dtype(like.dtype), device=like.device)
        return torch.log1p(-torch.exp2(-5 - h))

    def mix(self, x: Tensor, state: RetNetState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, RetNetState]:
        memory, seen = (None, None) if state is None else state
        q = self.q_proj(x).unflatten(-1, (self.heads, self.key_dim))
        k = self.k_proj(x).unflatten(-1, (self.heads, self.key_dim))
        values = (self.heads, self.value_dim)
        if self.position == "rotary":
            position, seen = positions(x, seen, cu_seqlens)
            q, k = (rotate(t, position, theta=self.rope_theta, size=self.key_dim) for t in (q, k))
        o, memory = gated_linear(
            q,
            k,
            self.v_proj(x).unflatten(-1, values),
            self.log_decay(x),
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        y = self.norm(o, self.gate_proj(x).unflatten(-1, values))
        return self.out_proj(y.flatten(-2)), RetNetState(memory, seen)
