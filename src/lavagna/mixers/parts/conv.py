"""A short causal convolution as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...ops.conv.api import short_conv

__all__ = ["ShortConv"]


class ShortConv(nn.Module):
    """y_t = silu(b + Σ_w weight[:, w] ∘ x_{t−W+1+w}), each channel alone (see lavagna.ops.short_conv).

    Args:
        channels: D.
        taps: W, the current token included.
        bias: with b.

    Parameters: weight [D, W] and bias [D], uniform in ±W^-0.5 (a depthwise torch.nn.Conv1d's own).
    """

    def __init__(self, channels: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        bound = taps**-0.5
        self.weight = nn.Parameter(torch.empty(channels, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    @property
    def state_shape(self) -> tuple[int, int]:
        """Shape [W−1, D] of one row's state."""
        channels, taps = self.weight.shape
        return taps - 1, channels

    def forward(self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        """x [B, T, D] and the last W−1 inputs [B, W−1, D] -> y [B, T, D] and the new ones."""
        y, tail = short_conv(
            x,
            self.weight,
            self.bias,
            activation="silu",
            state=state,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        return y, tail
