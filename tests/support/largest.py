"""The size of what an operator holds, seen from inside torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Largest"]


class Largest(TorchDispatchMode):
    """Records the most elements that any result has while it is entered, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in result if isinstance(result, tuple | list) else (result,):
            if isinstance(t, Tensor):
                self.elements = max(self.elements, t.numel())
        return result
