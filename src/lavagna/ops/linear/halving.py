"""Scores of a chunk under one decay per key channel: every pair meets at the border between two halves.

Cut the chunk in two. A query of the right half and a key of the left half both reach the border by
decays of their own side: o = (q ∘ decays since the border) · (k ∘ decays up to the border). The rest of
the pairs lie inside one half, where the same is done again. Nothing but decays ≤ 1 is ever multiplied,
and going from small halves to large ones each level costs one multiplication per element: queries of a
right half gain the decay of the whole left half, keys of a left half that of the right one. At the top
they are the queries and keys that read and write the state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Chunks", "halve"]


class Chunks(NamedTuple):
    """Chunks whose decays are absorbed by their queries and keys.

    Fields:
        queries: [..., C, K], q ∘ decay since the chunk's start: they read the state before the chunk.
        keys: [..., C, K], k ∘ decay up to the chunk's end: they write the state behind it.
        total: [..., K], decay of the whole chunk.
        scores: [..., C, C], what query i reads of key j, 0 above the diagonal.
    """

    queries: Tensor
    keys: Tensor
    total: Tensor
    scores: Tensor


def halve(q: Tensor, k: Tensor, log_decay: Tensor, *, reads_first: bool) -> Chunks:
    """Absorb the decays of chunks.

    Args:
        q, k, log_decay: [..., C, K], C ≥ 1.
        reads_first: token i reads before its own decay and writing (RWKV-6; the diagonal of the scores is
            then 0), not after them.
    """
    *lead, C, K = q.shape
    padding = (1 << (C - 1).bit_length()) - C  # halves of halves need a power of two
    tensors = (x.reshape(-1, C, K) for x in (q, k, log_decay.exp()))
    fills = (0.0, 0.0, 1.0)
    q, k, decay = (F.pad(x, (0, 0, 0, padding), value=f) for x, f in zip(tensors, fills, strict=True))
    queries, keys, total, scores = _Halve.apply(q, k, decay, reads_first)
    return Chunks(
        queries[:, :C].reshape(*lead, C, K),
        keys[:, :C].reshape(*lead, C, K),
        total.reshape(*lead, K),
        scores[:, :C, :C].reshape(*lead, C, C),
    )


#: called with the right queries [n, half, K], the left keys [n, half, K] and both halves' decays [n, 1, K]
_Visit = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def _climb(q: Tensor, k: Tensor, decay: Tensor, visit: _Visit) -> Tensor:
    """From halves of one token to halves of the chunk; changes q and k in place, returns the total decay."""
    C, K = q.shape[1:]
    half = 1
    while half < C:
        right = q.view(-1, 2, half, K)[:, 1]
        left = k.view(-1, 2, half, K)[:, 0]
        decay_left, decay_right = decay.view(-1, 2, 1, K).unbind(1)
        visit(right, left, decay_left, decay_right)
        right.mul_(decay_left)
        left.mul_(decay_right)
        decay = decay_left * decay_right
        half *= 2
    return decay.view(-1, K)


def _corners(scores: Tensor, half: int) -> Tensor:
    """The lower left quarters of all blocks of two halves: a view [M, blocks, half, half] of [M, C, C]."""
    M, C = scores.shape[:2]
    blocks = C // (2 * half)
    pairs = scores.view(M, blocks, 2, half, blocks, 2, half).diagonal(0, 1, 4)
    return pairs[:, 1, :, 0].permute(0, 3, 1, 2)


class _Halve(torch.autograd.Function):
    """Recomputes the levels in the backward pass: the inputs are all it keeps."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, decay: Tensor, reads_first: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(q, k, decay)
        ctx.reads_first = reads_first
        M, C, _ = q.shape
        scores = q.new_zeros(M, C, C)
        if not reads_first:
            scores.diagonal(0, 1, 2).copy_((q * k).sum(-1))

        def visit(right: Tensor, left: Tensor, *_: Tensor) -> None:
            corners = _corners(scores, right.shape[1])
            corners.copy_((right @ left.mT).view(corners.shape))

        queries, keys = _start(q, k, decay, reads_first)
        total = _climb(queries, keys, decay, visit)
        return queries, keys, total, scores

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_queries: Tensor, d_keys: Tensor, d_total: Tensor, d_scores: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, decay = ctx.saved_tensors
        K = q.shape[2]
        levels: list[tuple[Tensor, ...]] = []
        _climb(
            *_start(q, k, decay, ctx.reads_first),
            decay,
            lambda right, left, *decays: levels.append((right.clone(), left.clone(), *decays)),
        )
        dq, dk = (d.clone(memory_format=torch.contiguous_format) for d in (d_queries, d_keys))
        d_scores = d_scores.contiguous()
        d_decay = d_total.reshape(-1, 1, K)
        for right, left, decay_left, decay_right in reversed(levels):
            half = right.shape[1]
            d_right = dq.view(-1, 2, half, K)[:, 1]
            d_left = dk.view(-1, 2, half, K)[:, 0]
            d_corner = _corners(d_scores, half).reshape(-1, half, half)
            d_decay_left = d_decay * decay_right + (d_right * right).sum(1, keepdim=True)
            d_decay_right = d_decay * decay_left + (d_left * left).sum(1, keepdim=True)
            d_right.mul_(decay_left).add_(d_corner @ left)
            d_left.mul_(decay_right).add_(d_corner.mT @ right)
            d_decay = torch.stack([d_decay_left, d_decay_right], 1).view(-1, 1, K)
        d_decay = d_decay.view(q.shape)
        if ctx.reads_first:
            return dq, dk, d_decay, None
        d_diagonal = d_scores.diagonal(0, 1, 2)[..., None]
        return (
            torch.addcmul(d_diagonal * k, dq, decay),
            dk.addcmul_(d_diagonal, q),
            d_decay.addcmul(dq, q),
            None,
        )


def _start(q: Tensor, k: Tensor, decay: Tensor, reads_first: bool) -> tuple[Tensor, Tensor]:
    return (q.clone() if reads_first else q * decay), k.clone()
