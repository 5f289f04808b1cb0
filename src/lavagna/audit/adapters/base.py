"""One way to call every kind of model."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, Self

from torch import Tensor

__all__ = ["Adapter"]


class Adapter(ABC):
    """How one kind of model is called: x in, with a state, a mask or boundaries where it takes them.

    Attributes:
        model: a module or function.
        vocabulary: number of tokens, where x is int [B, T]; or
        width: D, where x is [B, T, D].
        avoid: tokens with a meaning of their own (padding).
        max_tokens: the longest sequence it can read, None for no end.
        takes_state: it returns a state from which it reads on.
        takes_mask: it can be told which tokens are real.
        left_padding: the mask may have its padding on the left.
        takes_packing: it takes boundaries of sequences packed into batch 1.
        uses_up_state: by the convention of its kind a state may be read from once.
    """

    model: Any
    vocabulary: int | None = None
    width: int | None = None
    avoid: frozenset[int] = frozenset()
    max_tokens: int | None = None
    takes_state = False
    takes_mask = False
    left_padding = True
    takes_packing = False
    uses_up_state = False

    @abstractmethod
    def call(
        self,
        x: Tensor,
        state: Any = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
    ) -> tuple[Any, Any]:
        """Run the model.

        Args:
            x: int [B, T] or float [B, T, D].
            state: what an earlier call with ``keep`` returned; None at the start.
            mask: bool [B, T], True = a real token.
            cu_seqlens: int32 [M+1].
            keep: the state is wanted.

        Returns:
            The output, which should be [B, T, ...], and the state.
        """

    @abstractmethod
    def select(self, state: Any, index: Tensor) -> Any:
        """The rows `index` of a state, as a new one."""

    def contents(self, state: Any) -> Any:
        """The part of a state that the model made."""
        return state

    def on(self, model: Any) -> Self:
        """The same conventions for another copy of the model."""
        other = copy.copy(self)
        other.model = model
        return other
