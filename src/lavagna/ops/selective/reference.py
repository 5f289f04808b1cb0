"""selective_scan one token at a time, as the paper writes it."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["selective_scan"]


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    *,
    dt_softplus: bool,
    dt_limit: tuple[float, float] | None,
    chunk_size: int | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """x, dt, z [B, T, D], A [D, N], state [B, D, N] -> y [B, T, D], state; `chunk_size` means nothing here."""
    tokens, channels = x.shape[1:]
    outputs = []
    for x_t, delta_t, B_t, C_t, z_t in zip(
        x.unbind(1),
        dt.unbind(1),
        _each_token(B, tokens, channels),
        _each_token(C, tokens, channels),
        [None] * tokens if z is None else z.unbind(1),
        strict=True,
    ):
        if dt_bias is not None:
            delta_t = delta_t + dt_bias
        if dt_softplus:
            delta_t = torch.logaddexp(delta_t, torch.zeros_like(delta_t))  # ln(e^Δ + e^0)
        if dt_limit is not None:
            delta_t = delta_t.clamp(*dt_limit)
        state = torch.exp(delta_t[:, :, None] * A) * state + delta_t[:, :, None] * B_t * x_t[:, :, None]
        y_t = (C_t * state).sum(2)
        if D is not None:
            y_t = y_t + D * x_t
        if z_t is not None:
            y_t = y_t * z_t * torch.sigmoid(z_t)
        outputs.append(y_t)
    return torch.stack(outputs, 1) if outputs else x, state


def _each_token(coefficient: Tensor, tokens: int, channels: int) -> list[Tensor]:
    """B or C at every token for every channel, [B or 1, D, N] each: channel d has group d // (D/G)."""
    if coefficient.ndim == 2:
        return [coefficient[None]] * tokens
    if coefficient.ndim == 3:
        return [c[:, None] for c in coefficient.unbind(1)]
    groups = coefficient.shape[2]
    return [c.repeat_interleave(channels // groups, dim=1) for c in coefficient.unbind(1)]
