"""Sequences of different lengths: packed into one row, or padded to a batch, and back.

Padding is packing with holes: a padded batch [B, T] with its mask is turned into a packed row of the real
tokens alone, so that no operator ever sees a padded token, and the results are put back with zeros in the
holes. The portable implementations, which run on batches, get packed sequences in groups of similar length;
each group is padded at its end with tokens that change no state (their fills).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, ShapeError
from .tree import concatenate, select

__all__ = ["Padding", "check_cu_seqlens", "lengths_of", "run_packed"]


def check_cu_seqlens(caller: str, cu_seqlens: Tensor, batch: int, tokens: int) -> list[int]:
    """Validate boundaries and return them as a list.

    Args:
        caller: the operator's name, for messages.
        cu_seqlens: int32 or int64 [M+1], from 0 to T, never decreasing; equal neighbours are empty sequences.
        batch: B of the packed tensors, which must be 1.
        tokens: T of the packed tensors.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise ShapeError(
            f"{caller}: cu_seqlens must be an int32 or int64 tensor of shape [M+1], got {type(cu_seqlens).__name__}"
        )
    if cu_seqlens.ndim != 1 or cu_seqlens.numel() < 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise ShapeError(
            f"{caller}: cu_seqlens must be int32 or int64 of shape [M+1], "
            f"got {cu_seqlens.dtype} {list(cu_seqlens.shape)}"
        )
    if batch != 1:
        raise ShapeError(f"{caller}: packed sequences need batch 1, got batch {batch}")
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != tokens or any(a > b for a, b in pairwise(bounds)):
        raise InputError(
            f"{caller}: cu_seqlens must rise from 0 to T={tokens}, got {bounds[:8]}{'...' if len(bounds) > 8 else ''}"
        )
    return bounds


def lengths_of(cu_seqlens: Tensor) -> Tensor:
    """Lengths [M] of packed sequences."""
    return cu_seqlens.diff()


class Padding(NamedTuple):
    """Where the real tokens of a padded batch stand.

    Fields:
        place: int64 [R], flat positions (row · T + column) of the real tokens, row by row.
        cu_seqlens: int64 [B+1], boundaries of the rows among the real tokens.
        batch, tokens: B and T of the padded batch.
    """

    place: Tensor
    cu_seqlens: Tensor
    batch: int
    tokens: int

    @classmethod
    def of(cls, token_mask: Tensor) -> Padding:
        """Read a mask [B, T] of bool, True = a real token."""
        lengths = token_mask.sum(1)
        cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
        return cls(token_mask.flatten().nonzero().squeeze(1), cu_seqlens, *token_mask.shape)

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] -> [1, R, ...], the real tokens alone."""
        return x.flatten(0, 1).index_select(0, self.place)[None]

    def unpack(self, x: Tensor) -> Tensor:
        """[1, R, ...] -> [B, T, ...] with zeros where no real token is."""
        flat = x.new_zeros(self.batch * self.tokens, *x.shape[2:]).index_copy(0, self.place, x[0])
        return flat.unflatten(0, (self.batch, self.tokens))


def run_packed(
    run: Callable[[dict[str, Tensor], Any], tuple[Tensor, Any]],
    timed: Mapping[str, Tensor],
    fills: Mapping[str, float],
    state: Any,
    bounds: list[int],
    *,
    alone: bool = False,
) -> tuple[Tensor, Any]:
    """Run a batched implementation on packed sequences.

    Args:
        run: takes the timed tensors as [n, L, ...] and a state of n rows; returns output [n, L, ...] and state.
        timed: name -> [1, T, ...], the tensors that have a time dimension.
        fills: name -> value of a token that changes no state (missing: 0).
        state: initial state, M rows.
        bounds: boundaries of the M sequences.
        alone: run each sequence by itself (the literal meaning of packing) instead of in groups of lengths
            within a factor of two of each other.

    Returns:
        output [1, T, ...] and the final state, M rows in the order of the sequences.
    """
    lengths = [b - a for a, b in pairwise(bounds)]
    if not alone and len(set(lengths)) == 1:  # a batch laid out in one row
        shape = (len(lengths), lengths[0])
        output, final = run({name: x[0].unflatten(0, shape) for name, x in timed.items()}, state)
        return output.flatten(0, 1)[None], final
    groups: dict[int, list[int]] = {}
    for sequence, length in enumerate(lengths):
        groups.setdefault(sequence if alone else length.bit_length(), []).append(sequence)
    first = next(iter(timed.values()))
    device = first.device
    outputs, states, positions, order = [], [], [], []
    for members in groups.values():
        longest = max(lengths[m] for m in members)
        starts = torch.tensor([bounds[m] for m in members], device=device)
        sizes = torch.tensor([lengths[m] for m in members], device=device)
        real = torch.arange(longest, device=device) < sizes[:, None]
        index = torch.where(real, starts[:, None] + torch.arange(longest, device=device), 0)
        group = {name: _gather(x, index, real, fills.get(name, 0.0)) for name, x in timed.items()}
        rows = torch.tensor(members, device=device)
        output, final = run(group, select(state, rows))
        kept = real.flatten().nonzero().squeeze(1)
        outputs.append(output.flatten(0, 1).index_select(0, kept))
        states.append(final)
        positions.append(index.flatten().index_select(0, kept))
        order += members
    if not groups:
        return run(dict(timed), state)
    back = torch.cat(positions).argsort()
    rows = torch.tensor(order, device=device).argsort()
    return torch.cat(outputs).index_select(0, back)[None], select(concatenate(states), rows)


def _gather(x: Tensor, index: Tensor, real: Tensor, fill: float) -> Tensor:
    if index.numel() == 0:
        return x.new_zeros(*index.shape, *x.shape[2:])
    taken = x[0].index_select(0, index.flatten()).unflatten(0, index.shape)
    return torch.where(real.reshape(*real.shape, *[1] * (x.ndim - 2)), taken, fill)
