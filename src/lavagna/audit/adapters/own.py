"""Models and mixers of this package."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ...mixers import Mixer
from ...models import LanguageModel
from ...models.backbone import Backbone
from ...ops import tree
from .base import Adapter

__all__ = ["MixerAdapter", "ModelAdapter"]


class ModelAdapter(Adapter):
    """A language model; of a classifier, whose answer is one per sequence, what its head reads."""

    takes_mask = True
    takes_packing = True

    def __init__(self, model: Backbone) -> None:
        self.model = model
        self.vocabulary = model.config.vocab_size
        self.max_tokens = model.config.max_positions
        self.takes_state = bool(tree.leaves(model.init_state(1)))

    def call(
        self,
        x: Tensor,
        state: Any = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
    ) -> tuple[Any, Any]:
        read = self.model if isinstance(self.model, LanguageModel) else self.model.hidden
        return read(x, state=state, token_mask=mask, cu_seqlens=cu_seqlens)

    def select(self, state: Any, index: Tensor) -> Any:
        return state.reorder(index)


class MixerAdapter(Adapter):
    """A mixer or an MLP."""

    takes_mask = True
    takes_packing = True

    def __init__(self, model: Mixer) -> None:
        self.model = model
        self.width = model.width
        self.takes_state = bool(tree.leaves(model.init_state(1)))

    def call(
        self,
        x: Tensor,
        state: Any = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
    ) -> tuple[Any, Any]:
        return self.model(x, state, token_mask=mask, cu_seqlens=cu_seqlens)

    def select(self, state: Any, index: Tensor) -> Any:
        return tree.select(state, index)
