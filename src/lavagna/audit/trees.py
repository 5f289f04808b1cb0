"""States as anyone writes them: tensors in tuples, lists, dicts and objects. Walk, copy and cut them.

States of this package's own models know themselves (lavagna.ops.tree); these functions serve all others too.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..ops import tree

__all__ = ["batch_axes", "held_bytes", "map_leaves", "rows", "tensors"]

_PLAIN = (str, bytes, int, float, complex, type, torch.dtype, torch.device, torch.nn.Module)


def tensors(state: Any) -> list[Tensor]:
    """All tensors of `state`, in a fixed order; an object that is met twice counts once."""
    return list(_tensors(state, set()))


def _tensors(state: Any, seen: set[int]) -> Iterator[Tensor]:
    if state is None or isinstance(state, _PLAIN) or callable(state) or id(state) in seen:
        return
    seen.add(id(state))
    if isinstance(state, Tensor):
        yield state
        return
    for part in _parts(state):
        yield from _tensors(part, seen)


def _parts(state: Any) -> list[Any]:
    if hasattr(state, "named_tensors"):
        return tree.leaves(state)
    if isinstance(state, dict):
        return list(state.values())
    if isinstance(state, tuple | list):
        return list(state)
    return list(vars(state).values()) if hasattr(state, "__dict__") else []


def map_leaves(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """A state of the same kind with `function` applied to each tensor, in the order of :func:`tensors`."""
    return _map(function, state, {})


def _map(function: Callable[[Tensor], Tensor], state: Any, done: dict[int, Any]) -> Any:
    if state is None or isinstance(state, _PLAIN) or callable(state):
        return state
    if id(state) in done:
        return done[id(state)]
    made: Any
    if isinstance(state, Tensor):
        made = function(state)
    elif hasattr(state, "map_tensors"):
        made = state.map_tensors(function)
    elif isinstance(state, dict):
        made = done[id(state)] = copy.copy(state)
        for key, value in state.items():
            made[key] = _map(function, value, done)
    elif isinstance(state, tuple):
        parts = [_map(function, part, done) for part in state]
        made = type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)
    elif isinstance(state, list):
        made = done[id(state)] = []
        made.extend(_map(function, part, done) for part in state)
    elif hasattr(state, "__dict__"):
        made = done[id(state)] = copy.copy(state)
        for name, value in vars(state).items():
            setattr(made, name, _map(function, value, done))
    else:
        made = state
    done[id(state)] = made
    return made


def held_bytes(state: Any) -> int:
    """Bytes that `state` keeps alive: whole storages, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(state)}
    return sum(storages.values())


def batch_axes(two: Any, three: Any) -> list[int | None]:
    """For each tensor of a state of two rows the axis that counts them, given one of three rows beside it."""
    return [
        next((axis for axis, sizes in enumerate(zip(a.shape, b.shape, strict=False)) if sizes == (2, 3)), None)
        for a, b in zip(tensors(two), tensors(three), strict=True)
    ]


def rows(state: Any, axes: list[int | None], index: Tensor) -> Any:
    """The rows `index` of a state, in this order; rows may repeat. Tensors without an axis of rows stay."""
    left = iter(axes)

    def select(tensor: Tensor) -> Tensor:
        axis = next(left)
        return tensor.clone() if axis is None else tensor.index_select(axis, index)

    return map_leaves(select, state)
