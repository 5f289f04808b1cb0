"""From any model to the one way in which checks call it."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...errors import InputError
from ...mixers import Mixer
from ...models.backbone import Backbone
from .base import Adapter
from .huggingface import TransformersAdapter, is_transformers_model
from .own import MixerAdapter, ModelAdapter
from .plain import PlainAdapter

__all__ = ["Adapter", "adapt"]


def adapt(
    model: Any, *, vocabulary: int | None = None, width: int | None = None, max_tokens: int | None = None
) -> Adapter:
    """The adapter of a module or function.

    Args:
        model: a model or mixer of this package, a model of transformers, or any other module or function.
        vocabulary, width: what the input of another module or function is; a module's is found by trying.
        max_tokens: the longest sequence that the model can read, where it does not say so itself.

    Raises:
        InputError: it is no sequence model, or what it takes cannot be found out.
    """
    for name, value in {"vocabulary": vocabulary, "width": width, "max_tokens": max_tokens}.items():
        if value is not None and value < 1:
            raise InputError(f"audit: {name} must be at least 1, got {value}")
    if vocabulary is not None and width is not None:
        raise InputError("audit: give vocabulary (the input is tokens) or width (it is vectors), not both")
    adapter: Adapter
    known = isinstance(model, Backbone | Mixer) or is_transformers_model(model)
    if known and (vocabulary is not None or width is not None):
        raise InputError(f"audit: {type(model).__name__} says itself what it reads: leave out vocabulary and width")
    if isinstance(model, Backbone):
        adapter = ModelAdapter(model)
    elif isinstance(model, Mixer):
        adapter = MixerAdapter(model)
    elif is_transformers_model(model):
        adapter = TransformersAdapter(model)
    elif isinstance(model, nn.Module) or callable(model):
        return PlainAdapter(model, vocabulary=vocabulary, width=width, max_tokens=max_tokens)
    else:
        raise InputError(f"expected a torch module or a function, got a {type(model).__name__}")
    if max_tokens is not None:
        adapter.max_tokens = min(max_tokens, adapter.max_tokens or max_tokens)
    return adapter
