"""The gated delta rule as a loop over tokens: the way of one-token steps."""

from __future__ import annotations

import torch
from torch import Tensor

from .unit import unit

__all__ = ["recurrent"]


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    *,
    qk_l2norm: bool,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] -> o [B, T, HV, V], state."""
    batch, tokens, key_heads, _ = q.shape
    heads = v.shape[2]
    if qk_l2norm:
        q, k = unit(q), unit(k)
    if heads != key_heads:
        q, k = (x.repeat_interleave(heads // key_heads, 2) for x in (q, k))

    def each_token(x: Tensor) -> tuple[Tensor, ...]:  # [B, T, HV, ...] -> T of [B·HV, ...]
        return x.transpose(0, 1).flatten(1, 2).unbind(0)

    beta = beta[..., None, None]
    decays: tuple[Tensor | None, ...] = (None,) * tokens
    if log_decay is not None:
        decay = log_decay.exp()
        decays = each_token(decay[..., None, None] if decay.ndim == 3 else decay[..., None])
    outputs = []
    memory = state.flatten(0, 1)  # [B·HV, K, V]
    for q_t, k_t, v_t, beta_t, decay_t in zip(
        *(each_token(x) for x in ((q * scale)[..., None, :], k[..., None, :], v[..., None, :], beta)),
        decays,
        strict=True,
    ):
        if decay_t is not None:
            memory = memory * decay_t
        error = torch.baddbmm(v_t, k_t, memory, alpha=-1)
        memory = torch.baddbmm(memory, k_t.mT, beta_t * error)
        outputs.append(torch.bmm(q_t, memory))
    if not outputs:
        return v, state
    output = torch.stack(outputs).view(tokens, batch, heads, v.shape[-1]).transpose(0, 1)
    return output, memory.view_as(state)
