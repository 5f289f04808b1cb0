"""gated_linear one token after the other: the form of a step, and of very short sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .normalizer import EPSILON, LinearState

__all__ = ["gated_linear"]

#: for each token what fades the state, [..., HV, K or 1, 1]
_Decays: TypeAlias = Sequence[Tensor | None]


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
    q = scale * q
    decays = _decays(log_decay, q.shape[1])
    if not normalizer:
        return _run(q, k, v, decays, bonus, state)
    # z apart, not as one more column of S: a step would copy all of S to put it there.
    o, S = _run(q, k, v, decays, bonus, state.S)
    weight, z = _run(q, k, torch.ones_like(v[..., :1]), decays, bonus, state.z[..., None])
    return o / (weight + EPSILON), LinearState(S, z.squeeze(-1))


def _run(q: Tensor, k: Tensor, v: Tensor, decays: _Decays, bonus: Tensor | None, S: Tensor) -> tuple[Tensor, Tensor]:
    rows = q[..., None, :].unbind(1)  # [B, HV, 1, K] each
    writes = zip(k[..., :, None].unbind(1), v[..., None, :].unbind(1), strict=True)
    outputs = []
    for row, (key, value), decay in zip(rows, writes, decays, strict=True):
        write = key * value
        before = S
        S = write + S if decay is None else torch.addcmul(write, decay, S)
        outputs.append(row @ (S if bonus is None else torch.addcmul(before, bonus[..., None], write)))
    return torch.cat(outputs, -2).transpose(1, 2) if outputs else v, S


def _decays(log_decay: Tensor | None, tokens: int) -> _Decays:
    if log_decay is None:
        return [None] * tokens
    decay = log_decay.exp()
    if decay.ndim == 1:
        return [decay[:, None, None]] * tokens
    return (decay if decay.ndim == 4 else decay[..., None])[..., None].unbind(1)
