"""gated_linear token by token, as the papers write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["gated_linear"]


def gated_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    *,
    normalizer: bool,
    scale: float,
    chunk_size: int | None,
    state: Any,
) -> tuple[Tensor, Any]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] or (S, z) -> o [B, T, HV, V], state."""
    ratio = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(ratio, 2), k.repeat_interleave(ratio, 2)
    S, z = state if normalizer else (state, None)
    outputs = []
    for t in range(q.shape[1]):
        q_t, k_t, v_t = q[:, t], k[:, t], v[:, t]
        write = torch.einsum("bhk,bhv->bhkv", k_t, v_t)
        decay = _decay_at(log_decay, t, k_t)  # [B, HV, K]
        if bonus is None:
            S = decay[..., None] * S + write
            S_read = S
        else:
            S_read = S + bonus[..., None] * write
            S = decay[..., None] * S + write
        o_t = scale * torch.einsum("bhkv,bhk->bhv", S_read, q_t)
        if z is not None:
            z_before, z = z, decay * z + k_t
            z_read = z if bonus is None else z_before + bonus * k_t
            o_t = o_t / (scale * torch.einsum("bhk,bhk->bh", z_read, q_t) + 1e-10)[..., None]
        outputs.append(o_t)
    final = state._replace(S=S, z=z) if normalizer else S
    return torch.stack(outputs, 1) if outputs else v, final


def _decay_at(log_decay: Tensor | None, t: int, like: Tensor) -> Tensor:
    if log_decay is None:
        return torch.ones_like(like)
    now = log_decay if log_decay.ndim == 1 else log_decay[:, t]  # [HV] | [B, HV] | [B, HV, K]
    return (now if now.ndim == 3 else now[..., None]).exp().expand_as(like)
