"""The gated delta rule token by token, as the papers write it (with S as [K, V])."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["gated_delta"]


def gated_delta(
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
    if qk_l2norm:
        q = q / torch.sqrt((q * q).sum(-1, keepdim=True) + 1e-6)
        k = k / torch.sqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    group = v.shape[2] // k.shape[2]
    q, k = q.repeat_interleave(group, 2), k.repeat_interleave(group, 2)
    outputs = []
    for t in range(q.shape[1]):
        q_t, k_t, v_t, beta_t = q[:, t], k[:, t], v[:, t], beta[:, t]
        if log_decay is not None:
            alpha = log_decay[:, t].exp()
            # one decay a head, or one for each key channel: the rows of S
            state = state * (alpha[..., None, None] if alpha.ndim == 2 else alpha[..., None])
        error = v_t - torch.einsum("bhkv,bhk->bhv", state, k_t)
        state = state + torch.einsum("bhk,bhv->bhkv", beta_t[..., None] * k_t, error)
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q_t))
    return torch.stack(outputs, 1) if outputs else v, state
