"""The generalised delta rule as a loop over tokens: the way of one-token steps."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["recurrent"]


def recurrent(
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
    batch, tokens, heads, values = v.shape

    def each_token(x: Tensor) -> tuple[Tensor, ...]:  # [B, T, H, X] -> T of [B·H, 1, X]
        return x.transpose(0, 1).flatten(1, 2)[:, :, None].unbind(0)

    outputs = []
    memory = state.flatten(0, 1)  # [B·H, K, V]
    for q_t, k_t, v_t, a_t, b_t, decay in zip(*map(each_token, (q * scale, k, v, a, b, log_decay.exp())), strict=True):
        read = torch.bmm(a_t, memory)
        memory = torch.baddbmm(memory * decay.mT, k_t.mT, v_t)
        memory = torch.baddbmm(memory, b_t.mT, read)
        outputs.append(torch.bmm(q_t, memory))
    if not outputs:
        return v, state
    output = torch.stack(outputs).view(tokens, batch, heads, values).transpose(0, 1)
    return output, memory.view_as(state)
