"""How much memory tensors take at most while something runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Peak"]


class Peak(TorchDispatchMode):
    """The most bytes that tensors made inside of this context held at once.

    Attributes:
        bytes: that number so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0
        self._made: dict[
            int, tuple[StorageWeakRef, int]
        ] = {}  # by address; the dead ones are swept out when it matters
        self._total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in given:  # no view of what was there
                storage = tensor.untyped_storage()
                _, dead = self._made.get(storage._cdata, (None, 0))
                self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
                self._total += storage.nbytes() - dead
        if self._total > self.bytes:
            self._made = {address: entry for address, entry in self._made.items() if not entry[0].expired()}
            self._total = sum(size for _, size in self._made.values())
            self.bytes = max(self.bytes, self._total)
        return result
