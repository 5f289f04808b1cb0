"""RWKV-6's channel mix: an MLP that also sees the token before."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .base import Mixer
from .parts.linear import Linear
from .parts.options import at_least_one
from .parts.shift import previous_token, shift_weights

__all__ = ["ChannelMix", "ChannelMixState"]


class ChannelMixState(NamedTuple):
    """last [B, D], the token before."""

    last: Tensor


class ChannelMix(Mixer):
    """y = σ(W_r x_r) ∘ W_v relu(W_k x_k)² (Peng et al. 2024, the channel mix), with

        x_k = x_t + (x_{t−1} − x_t) ∘ μ_k, and x_r the same with μ_r

    Args:
        width: D.
        hidden: rows of W_k; default 3.5 D rounded down.

    Parameters: mu_k and mu_r [D], in_proj [hidden, D] (W_k), gate_proj [D, D] (W_r), out_proj [D, hidden] (W_v).

    Initialisation: μ_k = μ_r = 1 − (i/D)^½, the authors' at the middle depth.
    """

    state_class = ChannelMixState
    published_mlp = None
    inner_option = "hidden"

    def __init__(self, width: int, *, hidden: int | None = None) -> None:
        super().__init__(width)
        at_least_one("channel_mix", hidden=hidden)
        hidden = 7 * width // 2 if hidden is None else hidden
        self.mu_k = nn.Parameter(shift_weights(width, 0.5))
        self.mu_r = nn.Parameter(shift_weights(width, 0.5))
        self.in_proj = Linear(width, hidden, bias=False)
        self.gate_proj = Linear(width, width, bias=False)
        self.out_proj = Linear(hidden, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ChannelMixState:
        return ChannelMixState(self._zeros(batch_size, self.width, dtype=dtype, device=device))

    def mix(
        self, x: Tensor, state: ChannelMixState | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, ChannelMixState]:
        before, last = previous_token(x, None if state is None else state.last, cu_seqlens)
        step = before - x
        k = self.in_proj(x + step * self.mu_k).relu().square()
        return self.gate_proj(x + step * self.mu_r).sigmoid() * self.out_proj(k), ChannelMixState(last)
