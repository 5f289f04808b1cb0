"""Decays over ranges of tokens inside a chunk, for every recurrence whose state fades.

A range decay is exp(Σ log_decay over the range). Its exponent is summed from the range's own terms, never taken
as the difference of two longer sums: after one −1e4 such a difference keeps no digit of a neighbouring −0.1.
No positive number is ever exponentiated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Faded", "channel_decays", "segment_decays"]


def segment_decays(log_decay: Tensor) -> Tensor:
    """The decay from each token to each later one.

        D_ij = exp(Σ_{l=j+1..i} log_decay_l) for j ≤ i, else 0

    Args:
        log_decay: [..., C], ≤ 0.

    Returns:
        [..., C, C]. Row j of a column's running sum begins with the column's own first term.
    """
    size = log_decay.shape[-1]
    upto = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    terms = log_decay.unsqueeze(-1).expand(*log_decay.shape, size).masked_fill(~upto.tril(-1), 0.0)
    return terms.cumsum(-2).exp() * upto


class Faded(NamedTuple):
    """What a chunk with a decay for each channel needs of its tokens.

    Fields:
        products: for each row tensor a tuple with, for each column tensor, P [..., C, C]:
            P_ij = Σ_c row_ic · exp(Σ_{l=j+1..i} log_decay_lc) · column_jc for j ≤ i, else 0.
        entering: [..., C, K], decay from the start of the chunk to each token, the token's own included.
        leaving: [..., C, K], decay after each token to the end of the chunk.
    """

    products: tuple[tuple[Tensor, ...], ...]
    entering: Tensor
    leaving: Tensor


def channel_decays(rows: Sequence[Tensor], columns: Sequence[Tensor], log_decay: Tensor) -> Faded:
    """Products of tokens that fade channel by channel in between.

    The chunk is built by halves. Two neighbouring blocks of c tokens meet at a boundary: every pair (i in the
    second, j in the first) is decayed by exp(terms of i's block up to i) · exp(terms of j's block after j), so
    one product of [c, K] by [K, c] gives all c² pairs, with exponents ≤ 0 that are sums from the boundary.
    Blocks of 1, 2, 4, ... cover every pair once in log₂ C rounds, and no [C, C, K] tensor exists.

    Args:
        rows, columns: each tensor [..., C, K], expandable to the shape of log_decay.
        log_decay: [..., C, K], ≤ 0; C a power of two.

    Returns:
        The products and the decays to the chunk's two ends.
    """
    *batch, size, channels = log_decay.shape

    def tokens(x: Tensor) -> Tensor:
        return x.expand(log_decay.shape).reshape(-1, channels)

    def blocks(x: Tensor, c: int) -> tuple[Tensor, Tensor]:
        first, second = x.reshape(-1, 2, c, x.shape[-1]).unbind(1)
        return first, second

    rows, columns = [tokens(x) for x in rows], [tokens(x) for x in columns]
    until = tokens(log_decay)  # sum from the start of the token's block, the token included
    after = torch.zeros_like(until)  # sum after the token to the end of its block
    products = [[(row * column).sum(-1, keepdim=True) for column in columns] for row in rows]
    c = 1
    while c < size:
        (until_1, until_2), (after_1, after_2) = blocks(until, c), blocks(after, c)
        to_boundary, from_boundary = after_1.exp(), until_2.exp()
        firsts = [(blocks(column, c)[0] * to_boundary).mT for column in columns]
        for row, line in zip(rows, products, strict=True):
            second = blocks(row, c)[1] * from_boundary
            line[:] = [_joined(*blocks(p, c), second @ first) for p, first in zip(line, firsts, strict=True)]
        until = torch.cat([until_1, until_2 + until_1[:, -1:]], 1)
        after = torch.cat([after_1 + until_2[:, -1:], after_2], 1)
        c *= 2
    return Faded(
        tuple(tuple(p.view(*batch, size, size) for p in line) for line in products),
        until.view(log_decay.shape).exp(),
        after.view(log_decay.shape).exp(),
    )


def _joined(first: Tensor, second: Tensor, across: Tensor) -> Tensor:
    """[[first, 0], [across, second]] of [n, c, c] each."""
    left = torch.cat([first, across], 1)
    right = F.pad(second, (0, 0, second.shape[1], 0))
    return torch.cat([left, right], 2)
