"""The selective scan as a loop over tokens: the shortest way for few of them, and twice differentiable."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .layout import by_group, groups_of

__all__ = ["scan"]


def scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, state: Tensor, chunk_size: int | None
) -> tuple[Tensor, Tensor]:
    """x, delta [B, T, D], A [D, N], state [B, D, N] -> y [B, T, D], state; `chunk_size` means nothing here."""
    groups = groups_of(B, C)
    log2_A = A * math.log2(math.e)  # torch's exp2 takes a third of the time of its exp
    outputs = []
    for delta_t, u_t, B_t, C_t in zip(
        delta.unbind(1),
        (delta * x).unflatten(2, (groups, -1)).unsqueeze(-1).unbind(1),
        _each_token(by_group(B, groups), x.shape[1]),
        _each_token(by_group(C, groups), x.shape[1]),
        strict=True,
    ):
        decay = torch.exp2(delta_t.unsqueeze(-1) * log2_A)
        state = torch.addcmul((u_t * B_t).flatten(1, 2), decay, state)
        outputs.append((state.unflatten(1, (groups, -1)) * C_t).sum(-1).flatten(1))
    return torch.stack(outputs, 1) if outputs else x, state


def _each_token(coefficient: Tensor, tokens: int) -> tuple[Tensor, ...]:
    rows = coefficient.unbind(1)
    return rows if len(rows) == tokens else rows * tokens
