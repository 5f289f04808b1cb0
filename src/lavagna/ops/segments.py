"""Decays between all pairs of tokens of one segment, each from the terms between the two alone."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Segments", "segments"]


class Segments(NamedTuple):
    """What a segment of C tokens does to memory.

    Fields:
        between: [..., C, C], what token i still sees of what token j wrote; 0 where it sees nothing.
        read: [..., C], what token i still sees of the state before the segment.
        write: [..., C], what is left of token j's writing behind the segment.
        total: [...], what is left of the state before the segment behind it.
    """

    between: Tensor
    read: Tensor
    write: Tensor
    total: Tensor


def segments(log_decay: Tensor, *, reads_first: bool) -> Segments:
    """Decays of one segment.

    Each exponent is a sum of its own terms, never a difference of running sums: after one −1e4 such a
    difference has lost the digits of every later term.

    Args:
        log_decay: [..., C], C ≥ 1, ≤ 0.
        reads_first: token i reads before its own decay and writing (RWKV-6), not after them.
    """
    C = log_decay.shape[-1]
    ones = log_decay.new_ones(C, C)
    # Row i of column j sums the terms j+1 .. i; above the diagonal −inf.
    sums = (log_decay[..., None] * ones.tril(-1)).cumsum(-2)
    between = (sums + torch.full_like(ones, -torch.inf).triu(1)).exp()
    read = log_decay.cumsum(-1).exp()
    write, total = between[..., -1, :], read[..., -1]
    if reads_first:
        between = F.pad(between[..., :-1, :], (0, 0, 1, 0))
        read = F.pad(read[..., :-1], (1, 0), value=1.0)
    return Segments(between, read, write, total)
