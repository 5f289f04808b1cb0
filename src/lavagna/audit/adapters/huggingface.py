"""Models of the library transformers, called as its own `generate` calls them."""

from __future__ import annotations

import copy
import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import InputError
from ..trees import batch_axes, rows
from .base import Adapter

__all__ = ["Held", "TransformersAdapter", "is_transformers_model"]

#: arguments that carry a state, newest convention first
STATES = ("cache", "past_key_values", "cache_params", "state")
#: those of them that hold a Cache, which the caller may have to make
CACHES = ("cache", "past_key_values")
#: keys of a configuration that say how many positions a table of positions has
POSITIONS = ("max_position_embeddings", "n_positions")


def is_transformers_model(model: Any) -> bool:
    """Whether `model` is one of transformers, without importing it."""
    return any(cls.__module__ == "transformers.modeling_utils" for cls in type(model).__mro__)


class Held(NamedTuple):
    """What one who generates keeps between calls.

    Fields:
        cache: the model's state.
        mask: bool [B, S], which of the tokens read so far are real.
    """

    cache: Any
    mask: Tensor


class TransformersAdapter(Adapter):
    """A causal language model.

    A cache is used up by a call, which is the library's convention: each call gets a copy. A mask is passed for all
    tokens read so far where keys are cached, and for the new ones where the state is recurrent; positions count real
    tokens, as `generate` has them.
    """

    left_padding = True
    uses_up_state = True

    def __init__(self, model: Any) -> None:
        if getattr(model.config, "is_encoder_decoder", False):
            raise InputError(f"expected a model that reads one sequence, got {type(model).__name__}, which reads two")
        embedding = model.get_input_embeddings()
        if not isinstance(embedding, nn.Embedding):
            raise InputError(f"expected a model of tokens, got {type(model).__name__}")
        self.model = model
        self.arguments = frozenset(inspect.signature(model.forward).parameters)
        self.vocabulary = embedding.num_embeddings
        pad = getattr(model.config, "pad_token_id", None)
        self.avoid = frozenset({pad} if isinstance(pad, int) else ())
        self.max_tokens = _positions(model, embedding)
        self.state_name = next((name for name in STATES if name in self.arguments), None)
        self.takes_state = self.state_name is not None
        self.takes_mask = "attention_mask" in self.arguments
        self.makes_state = self.takes_state and self._makes_state()

    def call(
        self,
        x: Tensor,
        state: Any = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
    ) -> tuple[Any, Any]:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        cache, seen = (self._start(keep), real) if state is None else (copy.deepcopy(state.cache), state.mask)
        seen = real if state is None else torch.cat([seen, real], 1)
        given: dict[str, Any] = {"input_ids": x}
        if not bool(seen.all()):
            given["attention_mask"] = (real if _recurrent(cache, self.state_name) else seen).to(torch.int64)
            if "position_ids" in self.arguments:
                given["position_ids"] = (seen.cumsum(1) - 1).clamp(min=0)[:, -x.shape[1] :]
        if self.state_name is not None:
            given["use_cache"] = keep
            if cache is not None:
                given[self.state_name] = cache
        result = self.model(**given)
        output = result.logits if hasattr(result, "logits") else result.last_hidden_state
        if not keep:
            return output, None
        # A model that takes a cache need not return it: it fills the one it was given.
        made = getattr(result, self.state_name or "", None)
        return output, Held(cache if made is None else made, seen)

    def _makes_state(self) -> bool:
        """Whether it makes a state and returns it, if it is given none."""
        try:
            with torch.no_grad():
                result = self.model(input_ids=torch.zeros(1, 1, dtype=torch.int64), use_cache=True)
        except Exception:  # noqa: BLE001 - that it raises is for the checks to find
            return True
        return getattr(result, self.state_name or "", None) is not None

    def _start(self, keep: bool) -> Any:
        if not keep or self.makes_state or self.state_name not in CACHES:
            return None
        from transformers import DynamicCache

        return DynamicCache(config=self.model.config)

    def select(self, state: Any, index: Tensor) -> Any:
        cache = copy.deepcopy(state.cache)
        if hasattr(cache, "reorder_cache"):
            cache.reorder_cache(index)
        else:
            x = torch.zeros(3, 1, dtype=torch.int64)
            two, three = (self.call(x[:n], keep=True)[1].cache for n in (2, 3))
            cache = rows(cache, batch_axes(two, three), index)
        return Held(cache, state.mask.index_select(0, index))

    def contents(self, state: Any) -> Any:
        return state.cache


def _recurrent(cache: Any, name: str | None) -> bool:
    """Whether no layer caches keys, so that a mask of earlier tokens means nothing."""
    if name not in CACHES:
        return True
    linear: list[bool] = getattr(cache, "is_linear", [])
    return bool(linear) and all(linear)


def _positions(model: Any, embedding: nn.Embedding) -> int | None:
    """The number of positions, where a table of them ends."""
    sizes = [size for key in POSITIONS if isinstance(size := getattr(model.config, key, None), int)]
    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not embedding]
    for table in tables:
        for size in sizes:
            if size <= table.num_embeddings <= size + 2:  # some tables have two rows more, for padding
                return size
    return None
