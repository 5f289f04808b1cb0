"""Token shift: each token beside the one before it."""

from __future__ import annotations

import torch
from torch import Tensor

from ...errors import StateError
from .precision import wide

__all__ = ["previous_token", "shift_weights"]


def previous_token(x: Tensor, last: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """The token before each one, and the last one of each row.

    Args:
        x: [B, T, D].
        last: [B, D] (or [M, D] of packed sequences), the token before the first one; None for zeros.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.

    Returns:
        [B, T, D] in x's dtype, and [B, D] (or [M, D]) in float32 (float64 if x is).

    Raises:
        StateError: `last` has another shape.
    """
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    if last is None:
        last = wide(x.new_zeros(rows, x.shape[2]))
    elif last.shape != (rows, x.shape[2]):
        raise StateError(f"token shift: the last tokens must have shape {[rows, x.shape[2]]}, got {list(last.shape)}")
    if cu_seqlens is None:
        both = torch.cat([last[:, None].to(x.dtype), x], 1)
        return both[:, :-1], wide(both[:, -1]).clone()  # a view would keep all of x in memory
    # Row m of `last` stands before the tokens of sequence m; a token's neighbour is one place to the left.
    sequence = torch.arange(rows, device=x.device)
    both = torch.cat([last.to(x.dtype), x[0]])
    start, length = cu_seqlens[:-1].to(torch.int64), cu_seqlens.diff()
    place = torch.arange(x.shape[1], device=x.device) + rows
    first = place == (start + rows).repeat_interleave(length)
    before = torch.where(first, sequence.repeat_interleave(length), place - 1)
    end = torch.where(length > 0, start + length + rows - 1, sequence)
    return both[before][None], wide(both[end])


def shift_weights(width: int, power: float, offset: float = 0.0) -> Tensor:
    """Where the mixture of a token with the one before it begins: 1 − (i/D)^power − offset [D].

    Weight 0 is the token alone and 1 the one before it alone.

    Source:
        The authors' code of RWKV-5 and RWKV-6, where power and offset change with a layer's depth.
    """
    return 1 - (torch.arange(width) / width) ** power - offset
