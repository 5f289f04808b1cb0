"""short_conv token by token, as the definition says."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["short_conv"]


def short_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, activation: str | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], weight [D, W], state [B, W-1, D] -> y [B, T, D], state."""
    outputs = []
    for x_t in x.unbind(1):
        window = torch.cat([state, x_t[:, None]], 1)  # [B, W, D]
        y_t = torch.einsum("bwd,dw->bd", window, weight)
        if bias is not None:
            y_t = y_t + bias
        if activation == "silu":
            y_t = y_t * torch.sigmoid(y_t)
        outputs.append(y_t)
        state = window[:, 1:]
    return torch.stack(outputs, 1) if outputs else x, state
