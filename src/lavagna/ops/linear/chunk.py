"""gated_linear chunk by chunk: inside a chunk matrix products, between chunks the state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..halving import halve
from ..segments import segments
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
    S = state
    if normalizer:
        v, S = with_ones(v, state)
    q = scale * q
    T = v.shape[1]
    chunk = chunk_size or _chunk_size(k.shape[3], v.shape[3])
    # Whole chunks, and what is left of the sequence as one shorter chunk: no token is made up.
    sizes = [T - T % chunk, T % chunk]
    gates = [log_decay] * 2 if log_decay is None or log_decay.ndim == 1 else log_decay.split(sizes, 1)
    outputs = []
    for q_, k_, v_, gate in zip(q.split(sizes, 1), k.split(sizes, 1), v.split(sizes, 1), gates, strict=True):
        if v_.shape[1]:
            o, S = _chunks(q_, k_, v_, gate, bonus, S, min(chunk, v_.shape[1]))
            outputs.append(o)
    if len(outputs) != 1:
        outputs = [torch.cat(outputs, 1) if outputs else v]
    o = outputs[0]
    return divide(o, S) if normalizer else (o, S)


def _chunk_size(K: int, V: int) -> int:
    """The power of two near half the root of K·V, where pairs (C a token) and states (K·V/C) weigh the same."""
    return 2 ** min(max((K * V).bit_length() // 2 - 1, 4), 7)


def _chunks(
    q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None, bonus: Tensor | None, S: Tensor, C: int
) -> tuple[Tensor, Tensor]:
    """T = N·C tokens, N ≥ 1; q is scaled already. R value heads stand on each key head."""
    B, T, HV, V = v.shape
    per_key = log_decay is not None and log_decay.ndim == 4
    if per_key and q.shape[2] != HV:  # each value head decays its keys in its own way
        q, k = (x.repeat_interleave(HV // x.shape[2], 2) for x in (q, k))
    H, K = q.shape[2:]
    R = HV // H

    def split(x: Tensor) -> Tensor:
        """[B, T, heads, ...] -> [N, B, heads, C, ...]."""
        return x.unflatten(1, (T // C, C)).transpose(0, 1).transpose(2, 3).contiguous()

    q, k, v = split(q), split(k), split(v.unflatten(2, (H, R)))
    reads_first = bonus is not None
    queries, keys = q, k  # those that read and write the state
    read = write = total = None
    if log_decay is None:
        weights = (q @ k.mT).tril(-1 if reads_first else 0)[:, :, :, None]
    elif per_key:
        (queries,), keys, total, (weights,) = halve([q], k, split(log_decay), reads_first=reads_first)
        weights, total = weights[:, :, :, None], total[..., None, None]
    else:
        if log_decay.ndim == 1:
            log_decay = log_decay.view(H, R, 1).expand(H, R, C)
        else:
            log_decay = split(log_decay.unflatten(2, (H, R))).mT
        between, read, write, total = segments(log_decay, reads_first=reads_first)
        weights = (q @ k.mT)[:, :, :, None] * between
        read, write = read.mT[..., None], write.mT[..., None]
        total = total[..., None, :, None].expand(*q.shape[:3], 1, R, 1)

    written = (v if write is None else write * v).flatten(-2)
    updates = (keys.mT @ written).unflatten(-1, (R, V))
    before, S = _scan(updates, total, S.unflatten(1, (H, R)).transpose(2, 3))
    o = (queries @ before.flatten(-2)).unflatten(-1, (R, V))
    if read is not None:
        o = read * o
    o = o + (weights @ v.transpose(3, 4)).transpose(3, 4)
    if bonus is not None:
        o = o + ((q * k) @ bonus.unflatten(0, (H, R)).mT)[..., None] * v
    return o.transpose(2, 3).transpose(0, 1).reshape(B, T, HV, V), S.transpose(2, 3).reshape(B, HV, K, V)


def _scan(updates: Tensor, total: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    """The states [N, B, H, K, R, V] before each chunk, and the one behind the last: all that is sequential."""
    decays = [None] * len(updates) if total is None else total.unbind(0)
    before = []
    for update, decay in zip(updates.unbind(0), decays, strict=True):
        before.append(S)
        S = update + S if decay is None else torch.addcmul(update, decay, S)
    return torch.stack(before), S
