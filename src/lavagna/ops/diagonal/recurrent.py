"""diagonal_ssm as a loop over tokens: the shortest way for few of them."""

from __future__ import annotations

import torch
from torch import Tensor

from .discrete import as_real, discretize, precise, readout

__all__ = ["scan"]


def scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    *,
    keep: bool,
    chunk_size: int | None,
    state: Tensor,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], dt, D [D], A, B, C [D, N], state [B, D, N] -> y [B, T, D], state; `chunk_size` has no meaning."""
    decay, write = (p.to(state.dtype) for p in discretize(precise(dt), precise(A), precise(B)))
    weight = readout(C)
    outputs = []
    for t, x_t in enumerate(x.unbind(1)):
        h = torch.addcmul(decay * state, write, x_t.unsqueeze(-1).to(state.dtype))
        state = h if real is None else torch.where(real[:, t, None, None], h, state)
        outputs.append((weight * as_real(state)).sum(-1))
    if not outputs:
        return x, state
    y = torch.stack(outputs, 1)
    return (y if D is None else torch.addcmul(y, D, x)), state
