"""The matrix that carries S_{t−1} to S_t, read off the operator that a mixer calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...ops.dispatch import Call, Result, Table
from ...ops.tree import leaves, map_tensors

__all__ = ["Recorded", "record", "transitions"]


class Recorded(NamedTuple):
    """A call that an operator received, and the operator's table."""

    table: Table
    call: Call


@contextmanager
def record() -> Iterator[list[Recorded]]:
    """Note every operator's validated call made within, in order; the calls run as ever."""
    calls: list[Recorded] = []
    run = Table.run

    def noted(table: Table, call: Call, **arguments: Any) -> Result:
        calls.append(Recorded(table, call))
        return run(table, call, **arguments)

    Table.run = noted  # type: ignore[method-assign, assignment]
    try:
        yield calls
    finally:
        Table.run = run  # type: ignore[method-assign]


def transitions(recorded: Recorded) -> Tensor:
    """The transition of each token, each head (or channel): M_t with S_t = M_t S_{t−1} + what is written.

    Every operator is affine in its state, so column i of M_t is S_t of the i-th basis vector as S_{t−1}, less S_t
    of zero as S_{t−1}. Both are computed by the operator itself, in float64, from the token's own keys and gates.

    Args:
        recorded: a call of one row, not packed, of an operator whose states are [B, H, K, ...] or [B, D, N].

    Returns:
        [T, H, K, K], or [T, D, N, N]; complex where the state is.
    """
    call = recorded.call
    tokens, size = call.tokens, leaves(call.state)[0].shape[2]
    # A row for each token and basis vector, one token long.
    timed = {name: _double(x)[0].repeat_interleave(size, 0)[:, None] for name, x in call.timed.items()}
    fixed = {name: None if x is None else _double(x) for name, x in call.fixed.items()}
    zero = map_tensors(lambda x: _double(x).new_zeros(tokens * size, *x.shape[1:]), call.state)

    def after(state: Any) -> Tensor:
        one = call._replace(timed=timed, fixed=fixed, state=state)
        found = recorded.table.run(one, form="auto", impl="auto", dtype=torch.float64, return_state=True)
        state = leaves(found.state)[0]
        return state.flatten(3)[..., 0] if state.ndim > 3 else state

    columns = after(map_tensors(_basis, zero)) - after(zero)
    return columns.unflatten(0, (tokens, size)).permute(0, 2, 3, 1)


def _double(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _basis(zero: Tensor) -> Tensor:
    """zero [T·K, H, K, ...] with ones where row i has the basis vector i mod K, in the first column alone."""
    state = zero.clone()
    first = state.flatten(3)[..., 0] if state.ndim > 3 else state
    rows = torch.arange(len(state))
    first[rows, :, rows % state.shape[2]] = 1
    return state
