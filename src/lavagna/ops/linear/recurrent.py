"""gated_linear one token after the other: the form of a step, and of very short sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .normalizer import divide, with_ones

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
    if ratio > 1:
        q, k = q.repeat_interleave(ratio, 2), k.repeat_interleave(ratio, 2)
    S = state
    if normalizer:
        v, S = with_ones(v, state)
    rows = (scale * q)[..., None, :].unbind(1)  # [B, HV, 1, K] each
    writes = zip(k[..., :, None].unbind(1), v[..., None, :].unbind(1), strict=True)
    decays = _decays(log_decay, q.shape[1])  # [.., HV, K or 1, 1] each
    outputs = []
    for row, (key, value), decay in zip(rows, writes, decays, strict=True):
        write = key * value
        before = S
        S = write + S if decay is None else torch.addcmul(write, decay, S)
        outputs.append(row @ (S if bonus is None else torch.addcmul(before, bonus[..., None], write)))
    o = torch.cat(outputs, -2).transpose(1, 2) if outputs else v
    return divide(o, S) if normalizer else (o, S)


def _decays(log_decay: Tensor | None, tokens: int) -> list[Tensor | None] | tuple[Tensor, ...]:
    if log_decay is None:
        return [None] * tokens
    decay = log_decay.exp()
    if decay.ndim == 1:
        return [decay[:, None, None]] * tokens
    return (decay if decay.ndim == 4 else decay[..., None])[..., None].unbind(1)
