"""States are trees: tensors, tuples of states, ``None``, or objects with a ``map_tensors`` method.

Every tensor of a state has the batch (or the packed sequence) as its first dimension, so that one
function applied to each leaf clones, moves, forks or reorders a state whatever its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["concatenate", "leaves", "map_tensors", "named_leaves", "nbytes", "select"]


def map_tensors(function: Callable[..., Tensor], state: Any, *others: Any) -> Any:
    """Apply `function` to each tensor of `state` (and to the same place of `others`), keeping the tree's kind."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state, *others)
    if isinstance(state, tuple):
        mapped = [map_tensors(function, *parts) for parts in zip(state, *others, strict=True)]
        return type(state)(*mapped) if hasattr(state, "_fields") else tuple(mapped)
    return state.map_tensors(function, *others)


def named_leaves(state: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (dotted name, tensor) for each tensor of `state`, in a fixed order."""
    if state is None:
        return
    if isinstance(state, Tensor):
        yield prefix, state
        return
    if isinstance(state, tuple):
        names = getattr(state, "_fields", None) or [str(i) for i in range(len(state))]
        parts = zip(names, state, strict=True)
    else:
        parts = state.named_tensors()
    for name, part in parts:
        name = f"{prefix}.{name}" if prefix else name
        if isinstance(part, Tensor):
            yield name, part
        else:
            yield from named_leaves(part, name)


def leaves(state: Any) -> list[Tensor]:
    """All tensors of `state`, in the order of :func:`named_leaves`."""
    return [tensor for _, tensor in named_leaves(state)]


def nbytes(state: Any) -> int:
    """Bytes of all tensors of `state`."""
    return sum(t.numel() * t.element_size() for t in leaves(state))


def select(state: Any, index: Tensor) -> Any:
    """The rows `index` (int64 [n]) of `state`, in this order; rows may repeat."""
    return map_tensors(lambda t: t.index_select(0, index), state)


def concatenate(states: list[Any]) -> Any:
    """Join states along the batch."""
    return map_tensors(lambda *parts: torch.cat(parts), *states)
