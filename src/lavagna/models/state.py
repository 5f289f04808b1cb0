"""The state of a whole model: everything it remembers of what it has read, and nothing else does."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import StateError
from ..files import atomic_file
from ..ops import tree

if TYPE_CHECKING:
    from .backbone import Backbone

__all__ = ["BlockState", "ModelState"]

_LOGITS = "logits"


class BlockState(NamedTuple):
    """States of a block's two parts; None for a part that carries none."""

    mixer: Any
    mlp: Any


class ModelState:
    """What a model remembers of each row of a batch.

    Every tensor in it has the rows first, and all of them are zero before the first token.

    Args:
        layers: one BlockState per block.
        seen: int64 [B], tokens read so far, where the model adds positions to its embeddings; else None.
    """

    def __init__(self, layers: tuple[BlockState, ...], seen: Tensor | None) -> None:
        self.layers = layers
        self.seen = seen

    def map_tensors(self, function: Callable[..., Tensor], *others: ModelState) -> ModelState:
        """Apply a function to every tensor (see lavagna.ops.tree)."""
        layers = tree.map_tensors(function, self.layers, *(o.layers for o in others))
        return ModelState(layers, tree.map_tensors(function, self.seen, *(o.seen for o in others)))

    def named_tensors(self) -> list[tuple[str, Any]]:
        """The parts of the tree by name (see lavagna.ops.tree)."""
        return [("layers", self.layers), ("seen", self.seen)]

    @property
    def rows(self) -> int:
        """Number of rows (0 if no layer carries a state)."""
        return next((leaf.shape[0] for _, leaf in tree.named_leaves(self)), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return tree.nbytes(self)

    def clone(self) -> ModelState:
        """A copy that shares no memory."""
        return self.map_tensors(torch.clone)

    def detach(self) -> ModelState:
        """The same values, cut off from the graph that computed them."""
        return self.map_tensors(Tensor.detach)

    def fork(self, n: int) -> ModelState:
        """Each row n times, one after the other: rows 0, 0, ..., 1, 1, ...

        Raises:
            StateError: n is below one.
        """
        if n < 1:
            raise StateError(f"fork: n must be at least 1, got {n}")
        return self.map_tensors(lambda t: t.repeat_interleave(n, 0))

    def reorder(self, index: Tensor) -> ModelState:
        """Row i of the result is row index[i]; int64 [n], rows may repeat or be left out.

        Raises:
            StateError: an index is no row of this state.
        """
        if not isinstance(index, Tensor) or index.ndim != 1 or index.dtype not in (torch.int32, torch.int64):
            raise StateError(f"reorder: rows must be an int64 tensor of shape [n], got {_described(index)}")
        if index.numel() and (int(index.min()) < 0 or int(index.max()) >= self.rows):
            raise StateError(f"reorder: rows must be from 0 to {self.rows - 1}, got {index.tolist()}")
        return tree.select(self, index)

    def reset(self, rows: Tensor) -> ModelState:
        """Forget all that the rows marked True (bool [B]) have read.

        Raises:
            StateError: `rows` does not mark each row of this state.
        """
        if next(tree.named_leaves(self), None) is None:
            return self  # nothing to forget
        if not isinstance(rows, Tensor) or rows.dtype != torch.bool or rows.shape != (self.rows,):
            raise StateError(f"reset: rows must be a bool tensor of shape [{self.rows}], got {_described(rows)}")

        def keep(t: Tensor) -> Tensor:
            return torch.where(
                rows.reshape(-1, *[1] * (t.ndim - 1)), torch.zeros((), dtype=t.dtype, device=t.device), t
            )

        return self.map_tensors(keep)

    def to(self, device: torch.device | str) -> ModelState:
        """The state on another device."""
        return self.map_tensors(lambda t: t.to(device))

    def save(self, path: str | os.PathLike[str], model: Backbone, *, logits: Tensor | None = None) -> None:
        """Write a safetensors file, whole or not at all, with the model's configuration in its header.

        Args:
            path: the file.
            model: the model that made this state.
            logits: [B, vocab], what the model expects next, to be kept beside the state.
        """
        from safetensors.torch import save_file

        tensors = {name: _real(t).detach().cpu().contiguous().clone() for name, t in tree.named_leaves(self)}
        if logits is not None:
            tensors[_LOGITS] = logits.detach().cpu().contiguous().clone()
        header = {"format": "lavagna-state-1", "config": model.config.to_json(), "rows": str(self.rows)}
        with atomic_file(path) as temporary:
            save_file(tensors, temporary, metadata=header)

    @staticmethod
    def load(path: str | os.PathLike[str], model: Backbone) -> ModelState:
        """Read a state that a model of the same configuration saved; raises as :meth:`load_with_logits`."""
        return ModelState.load_with_logits(path, model)[0]

    @staticmethod
    def load_with_logits(path: str | os.PathLike[str], model: Backbone) -> tuple[ModelState, Tensor | None]:
        """Read a state and the logits that were saved beside it, if any.

        Args:
            path: the file.
            model: the model that will go on from it.

        Raises:
            StateError: the file is missing or no state, or another configuration made it; the message names
                each key that differs.
        """
        from safetensors import SafetensorError, safe_open

        if not os.path.isfile(path):
            raise StateError(f"state file {os.fspath(path)!r} does not exist")
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise StateError(f"{os.fspath(path)!r} is no state file: {error}") from None
        if header.get("format") != "lavagna-state-1":
            raise StateError(f"{os.fspath(path)!r} is no state file: its format is {header.get('format')!r}")
        differences = model.config.differences(json.loads(header["config"]))
        if differences:
            raise StateError(f"{os.fspath(path)!r} was saved by another configuration: {'; '.join(differences)}")
        device = next(model.parameters()).device
        logits = tensors.pop(_LOGITS, None)
        template = model.init_state(int(header["rows"]))
        names = [name for name, _ in tree.named_leaves(template)]
        if set(names) != set(tensors):
            raise StateError(
                f"{os.fspath(path)!r} holds other tensors than this model's state: {sorted(set(names) ^ set(tensors))}"
            )
        order = iter(names)
        # A key-value cache takes this model's dtype, should the weights have been converted meanwhile.
        state = template.map_tensors(lambda t: _like(t, tensors[next(order)]).to(device, t.dtype))
        return state, None if logits is None else logits.to(device)


def _real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of reals: safetensors has no complex128."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _like(template: Tensor, saved: Tensor) -> Tensor:
    """What :func:`_real` was given, where the template is complex."""
    return torch.view_as_complex(saved) if template.is_complex() else saved


def _described(value: Any) -> str:
    """A tensor's dtype and shape, or another value's type, for a message."""
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
