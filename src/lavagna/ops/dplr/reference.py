"""The generalised delta rule token by token, as the paper writes it (with S as [K, V])."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["generalized_delta"]


def generalized_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_decay: Tensor,
    *,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """q, k, a, b, log_decay [B, T, H, K], v [B, T, H, V], state [B, H, K, V] -> o [B, T, H, V], state."""
    outputs = []
    for t in range(q.shape[1]):
        read = torch.einsum("bhkv,bhk->bhv", state, a[:, t])  # of the memory before it fades
        state = log_decay[:, t].exp()[..., None] * state
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        state = state + torch.einsum("bhk,bhv->bhkv", b[:, t], read)
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1) if outputs else v, state
