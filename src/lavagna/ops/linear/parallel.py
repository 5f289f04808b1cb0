"""gated_linear as attention without softmax: every pair of tokens at once, for short sequences."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import Call
from ..segments import segments
from .normalizer import divide, with_ones

__all__ = ["gated_linear", "refuses"]

#: elements of the decays between all pairs, above which the form is refused
LIMIT = 2**24


def refuses(call: Call) -> list[str]:
    """Refuse sequences whose pairs would not fit."""
    k, v = call.timed["k"], call.timed["v"]
    per_key = call.timed["log_decay"].ndim == 4 if "log_decay" in call.timed else False
    pairs = k.shape[0] * v.shape[2] * k.shape[1] ** 2 * (k.shape[3] if per_key else 1)
    if pairs <= LIMIT:
        return []
    return [f"T={k.shape[1]} needs {pairs:,} decays between pairs, and it holds at most {LIMIT:,}; use the chunk form"]


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
    T, HV = v.shape[1], v.shape[2]
    ratio = HV // k.shape[2]
    S = state
    if normalizer:
        v, S = with_ones(v, state)
    if T == 0:
        return divide(v, S) if normalizer else (v, S)
    q, k, v = ((x if x.shape[2] == HV else x.repeat_interleave(ratio, 2)).transpose(1, 2) for x in (scale * q, k, v))

    # The channel axis stands before time, so that a decay for all channels is one of a single channel.
    if log_decay is None:
        log_decay = q.new_zeros(1, 1, 1, T)
    elif log_decay.ndim == 1:
        log_decay = log_decay[:, None, None].expand(HV, 1, T)
    elif log_decay.ndim == 3:
        log_decay = log_decay.transpose(1, 2)[:, :, None]
    else:
        log_decay = log_decay.permute(0, 2, 3, 1)
    between, read, write, total = segments(log_decay, reads_first=bonus is not None)
    if between.shape[-3] == 1:
        weights = (q @ k.mT) * between.squeeze(-3)
    else:
        weights = torch.einsum("bhik,bhkij,bhjk->bhij", q, between, k)
    o = (q * read.mT) @ S + weights @ v
    if bonus is not None:
        o = o + (q * bonus[:, None] * k).sum(-1, keepdim=True) * v
    S = total[..., None] * S + (k * write.mT).mT @ v
    o = o.transpose(1, 2)
    return divide(o, S) if normalizer else (o, S)
