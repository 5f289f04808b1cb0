"""Scores of a chunk under one decay per channel: every pair of tokens meets at the border of two halves.

Cut the chunk in two. A row (query) of the right half and a column (key) of the left half both reach the
border by decays of their own side, so that all these pairs are one matrix product:

    score_ij = (row_i ∘ decays since the border) · (column_j ∘ decays up to the border)

The other pairs lie inside one half, where the same is done again. Going from halves of one token to the
halves of the chunk, a level costs one multiplication per element: the rows of a right half gain the decay of
the whole left half, the columns of a left half that of the right one. At the top they are the rows that
read, and the columns that write, the state. Only decays ≤ 1 are ever multiplied, each from the tokens it
spans, nothing is divided or subtracted, and no [C, C, K] tensor exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["Absorbed", "halve"]


class Absorbed(NamedTuple):
    """Chunks whose decays are absorbed by their rows and columns.

    Fields:
        rows: each [..., C, K], multiplied by the decay since the chunk's start: they read the state before it.
        column: [..., C, K], multiplied by the decay up to the chunk's end: they write the state behind it.
        total: [..., K], decay of the whole chunk.
        scores: for each row tensor [..., C, C], what row i reads of column j; 0 above the diagonal.
    """

    rows: tuple[Tensor, ...]
    column: Tensor
    total: Tensor
    scores: tuple[Tensor, ...]


def halve(rows: Sequence[Tensor], column: Tensor, log_decay: Tensor, *, reads_first: bool = False) -> Absorbed:
    """Absorb the decays of chunks.

        score_ij = Σ_c row_ic · exp(Σ_{l=j+1..i} log_decay_lc) · column_jc  for j ≤ i

    Args:
        rows: each [..., C, K], C ≥ 1.
        column: [..., C, K].
        log_decay: [..., C, K], ≤ 0.
        reads_first: row i reads before token i decays the state: the sums end at i − 1, for j < i.
    """
    *lead, C, K = column.shape
    padding = (1 << (C - 1).bit_length()) - C  # halves of halves need a power of two

    def blocks(x: Tensor, fill: float) -> Tensor:
        x = x.reshape(-1, C, K)
        return F.pad(x, (0, 0, 0, padding), value=fill) if padding else x.contiguous()

    stacked = torch.stack([blocks(row, 0.0) for row in rows], -2)
    absorb: Callable[..., tuple[Tensor, ...]] = _Halve.apply
    reading, writing, total, scores = absorb(stacked, blocks(column, 0.0), blocks(log_decay.exp(), 1.0), reads_first)
    return Absorbed(
        tuple(x.reshape(*lead, C, K) for x in reading[:, :C].unbind(2)),
        writing[:, :C].reshape(*lead, C, K),
        total.reshape(*lead, K),
        tuple(x.reshape(*lead, C, C) for x in scores[:, :C, :, :C].unbind(2)),
    )


#: called with right rows [n, half·R, K], left columns [n, half, K] and the decays [n, 1, K] of both halves
_Visit = Callable[[Tensor, Tensor, Tensor, Tensor], None]


def _climb(rows: Tensor, column: Tensor, decay: Tensor, visit: _Visit) -> Tensor:
    """From halves of one token to halves of the chunk.

    Changes rows [M, C, R, K] and column [M, C, K] in place; returns the total decay [M, K].
    """
    C, R, K = rows.shape[1:]
    half = 1
    while half < C:
        right = rows.view(-1, 2, half * R, K)[:, 1]
        left = column.view(-1, 2, half, K)[:, 0]
        decay_left, decay_right = decay.view(-1, 2, 1, K).unbind(1)
        visit(right, left, decay_left, decay_right)
        right.mul_(decay_left)
        left.mul_(decay_right)
        decay = decay_left * decay_right
        half *= 2
    return decay.view(-1, K)


def _corners(scores: Tensor, half: int) -> Tensor:
    """Right rows against left columns in all blocks of two halves.

    A view [M, blocks, half·R, half] of scores [M, C, R, C].
    """
    M, C, R = scores.shape[:3]
    blocks = C // (2 * half)
    pairs = scores.view(M, blocks, 2, half * R, blocks, 2, half).diagonal(0, 1, 4)
    return pairs[:, 1, :, 0].permute(0, 3, 1, 2)


class _Halve(torch.autograd.Function):
    """Climbs again in the backward pass: the inputs are all that it keeps."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, column: Tensor, decay: Tensor, reads_first: bool) -> tuple[Tensor, ...]:
        ctx.save_for_backward(rows, column, decay)
        ctx.reads_first = reads_first
        M, C, R, _ = rows.shape
        scores = rows.new_zeros(M, C, R, C)
        if not reads_first:
            scores.diagonal(0, 1, 3).copy_((rows * column[:, :, None]).sum(-1).mT)

        def visit(right: Tensor, left: Tensor, *_: Tensor) -> None:
            corners = _corners(scores, left.shape[1])
            corners.copy_((right @ left.mT).view(corners.shape))

        reading, writing = _start(rows, column, decay, reads_first)
        total = _climb(reading, writing, decay, visit)
        return reading, writing, total, scores

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_rows: Tensor, d_column: Tensor, d_total: Tensor, d_scores: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        rows, column, decay = ctx.saved_tensors
        R, K = rows.shape[2:]
        levels: list[tuple[Tensor, ...]] = []
        _climb(
            *_start(rows, column, decay, ctx.reads_first),
            decay,
            lambda right, left, *decays: levels.append((right.clone(), left.clone(), *decays)),
        )
        d_rows, d_column = (d.clone(memory_format=torch.contiguous_format) for d in (d_rows, d_column))
        d_scores = d_scores.contiguous()
        d_decay = d_total.reshape(-1, 1, K)
        for right, left, decay_left, decay_right in reversed(levels):
            half = left.shape[1]
            d_right = d_rows.view(-1, 2, half * R, K)[:, 1]
            d_left = d_column.view(-1, 2, half, K)[:, 0]
            d_corner = _corners(d_scores, half).reshape(-1, half * R, half)
            d_decay_left = d_decay * decay_right + (d_right * right).sum(1, keepdim=True)
            d_decay_right = d_decay * decay_left + (d_left * left).sum(1, keepdim=True)
            d_right.mul_(decay_left).add_(d_corner @ left)
            d_left.mul_(decay_right).add_(d_corner.mT @ right)
            d_decay = torch.stack([d_decay_left, d_decay_right], 1).view(-1, 1, K)
        d_decay = d_decay.view(column.shape)
        if not ctx.reads_first:
            d_decay = d_decay + (d_rows * rows).sum(2)
            d_diagonal = d_scores.diagonal(0, 1, 3).mT[..., None]  # [M, C, R, 1]
            d_rows.mul_(decay[:, :, None]).addcmul_(d_diagonal, column[:, :, None])
            d_column.add_((d_diagonal * rows).sum(2))
        return d_rows, d_column, d_decay, None


def _start(rows: Tensor, column: Tensor, decay: Tensor, reads_first: bool) -> tuple[Tensor, Tensor]:
    """Copies of rows and column at the bottom, where a half is a token."""
    return (rows.clone() if reads_first else rows * decay[:, :, None]), column.clone()
