"""Any other module or function. What it takes is read from its signature and tried."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError
from ..compare import difference
from ..finding import ModelError
from ..trees import batch_axes, rows
from .base import Adapter

__all__ = ["PlainAdapter"]

#: arguments that carry a state
STATES = ("state", "cache", "past_key_values", "past", "hidden", "hx", "h0", "memory")
#: arguments that say which tokens are real, or which are padding
MASKS = (
    "token_mask",
    "attention_mask",
    "mask",
    "key_padding_mask",
    "src_key_padding_mask",
    "padding_mask",
    "pad_mask",
)
#: arguments that tell the length of each row, padded on the right
LENGTHS = ("lengths", "seq_lens", "sequence_lengths")
#: arguments that ask for the state
KEEP = ("return_state", "use_cache")
#: the argument that takes boundaries of packed sequences
PACKING = "cu_seqlens"
#: attributes that tell a module's width
WIDTHS = ("width", "d_model", "hidden_size", "input_size", "embed_dim", "dim")
#: modules of torch that read [T, B, D] unless they are told otherwise
TIME_FIRST = (nn.RNNBase, nn.TransformerEncoder, nn.TransformerEncoderLayer)
#: what holds the output of a call, and what holds the state
OUTPUTS = ("logits", "last_hidden_state", "output")


class PlainAdapter(Adapter):
    """f(x, ...) -> output or (output, state); x is int [B, T] or float [B, T, D].

    Args:
        model: a module or function; of its arguments the first is x, and the names of the lists above are known.
        vocabulary, width: what x is; None tries the sizes that the module's parameters suggest.
        max_tokens: the longest sequence.
    """

    def __init__(
        self, model: Any, *, vocabulary: int | None = None, width: int | None = None, max_tokens: int | None = None
    ) -> None:
        self.model = model
        self.max_tokens = max_tokens
        if isinstance(model, TIME_FIRST) and any(getattr(m, "batch_first", True) is False for m in model.modules()):
            raise InputError(f"expected a model of [B, T, D], got {type(model).__name__} with batch_first=False")
        self.arguments = _arguments(model)
        self.state_name = next((name for name in STATES if name in self.arguments), None)
        self.mask_name: str | None = None
        self.as_mask: Callable[[Tensor], Tensor] = _real
        self.axes: list[int | None] | None = None
        self._find_input(vocabulary, width)
        self.takes_packing = PACKING in self.arguments
        self.takes_state = self.state_name is not None and self._returns_state()
        self._find_mask()

    # --- calls ------------------------------------------------------------------------------------------------

    def call(
        self,
        x: Tensor,
        state: Any = None,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
    ) -> tuple[Any, Any]:
        given: dict[str, Any] = {name: keep for name in KEEP if name in self.arguments}
        if state is not None and self.state_name is not None:
            given[self.state_name] = state
        if mask is not None and self.mask_name is not None:
            given[self.mask_name] = self.as_mask(mask)
        if cu_seqlens is not None:
            given[PACKING] = cu_seqlens
        return _split(self.model(x, **given), self.state_name)

    def select(self, state: Any, index: Tensor) -> Any:
        if self.axes is None:
            two, three = (self.call(self._sample(n, 3), keep=True)[1] for n in (2, 3))
            self.axes = batch_axes(two, three)
        return rows(state, self.axes, index)

    # --- what it takes ------------------------------------------------------------------------------------------

    def _sample(self, batch: int, tokens: int) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        if self.vocabulary is not None:
            return torch.randint(0, self.vocabulary, (batch, tokens), generator=generator)
        assert self.width is not None
        return torch.randn(batch, tokens, self.width, generator=generator).to(_dtype(self.model))

    def _try(self, **given: Any) -> Any:
        """The output for two rows of three tokens, or the exception."""
        torch.manual_seed(0)  # should it draw random numbers, then the same ones
        try:
            with torch.no_grad():
                asked = {name: True for name in KEEP if name in self.arguments}
                output, state = _split(self.model(self._sample(2, 3), **asked, **given), self.state_name)
        except Exception as error:  # noqa: BLE001 - whatever it is, this way it cannot be called
            return ModelError(f"raised {type(error).__name__}: {error}")
        if not isinstance(output, Tensor) or output.shape[:2] != (2, 3):
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            return ModelError(f"returned {got} for two rows of three tokens")
        return output, state

    def _find_input(self, vocabulary: int | None, width: int | None) -> None:
        """Set vocabulary or width: the one given, or the first that works."""
        if vocabulary is not None or width is not None:
            self.vocabulary, self.width = vocabulary, width
            return
        last: ModelError | None = None
        for name, size in _sizes(self.model):
            self.vocabulary, self.width = (size, None) if name == "vocabulary" else (None, size)
            result = self._try()
            if not isinstance(result, ModelError):
                return
            last = result
        why = f"; with the last one the model {last}" if last else ""
        raise InputError(f"expected vocabulary= or width=, since no size that the parameters suggest works{why}")

    def _returns_state(self) -> bool:
        result = self._try()
        return not isinstance(result, ModelError) and result[1] is not None

    def _find_mask(self) -> None:
        """Find the mask's argument and what it wants to be told, by trying."""
        for name in LENGTHS:
            if name in self.arguments:
                self.mask_name, self.as_mask = name, _lengths
                self.takes_mask, self.left_padding = True, False
                return
        named = [name for name in MASKS if name in self.arguments]
        plain = self._try()
        if not named or isinstance(plain, ModelError):
            return
        for name, dtype in product(named, (torch.bool, torch.int64, _dtype(self.model))):
            ones = torch.ones(2, 3, dtype=dtype)
            same = []
            for mask in (ones, torch.zeros_like(ones)):
                result = self._try(**{name: mask})
                same.append(not isinstance(result, ModelError) and difference(result[0], plain[0]) < 1e-4)
            if any(same):
                # One that changes nothing either way means what its name says.
                real = same[0] if same[0] != same[1] else "pad" not in name
                self.mask_name, self.takes_mask = name, True
                self.as_mask = _caster(dtype, real)
                return


def _real(mask: Tensor) -> Tensor:
    return mask


def _lengths(mask: Tensor) -> Tensor:
    return mask.sum(1)


def _caster(dtype: torch.dtype, real: bool) -> Callable[[Tensor], Tensor]:
    return lambda mask: (mask if real else ~mask).to(dtype)


def _arguments(model: Any) -> frozenset[str]:
    """Names of the arguments behind x.

    Raises:
        InputError: it cannot be called with x alone.
    """
    function = model.forward if isinstance(model, nn.Module) else model
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", repr(model))
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise InputError(f"expected a module or a function with a signature, got {name}") from None
    named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in named[1:] if p.default is p.empty]
    if needed or not parameters:
        raise InputError(f"expected {name} to be called with its input alone, but it needs {', '.join(needed)}")
    return frozenset(p.name for p in named[1:])


def _dtype(model: Any) -> torch.dtype:
    """The dtype of the parameters."""
    if isinstance(model, nn.Module):
        for parameter in model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
    return torch.float32


def _sizes(model: Any) -> Iterator[tuple[str, int]]:
    """Sizes of the input that a module's parts suggest, likeliest first."""
    if not isinstance(model, nn.Module):
        return
    embedding = next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)
    if embedding is not None:
        yield "vocabulary", embedding.num_embeddings
    found = [getattr(model, name, None) for name in WIDTHS]
    found += [size for p in model.parameters() for size in p.shape[1:]]
    for size in dict.fromkeys(size for size in found if isinstance(size, int)):
        yield "width", size


def _split(result: Any, state_name: str | None) -> tuple[Any, Any]:
    """The output and the state in what a call returned."""
    if isinstance(result, dict):
        return next((result[name] for name in OUTPUTS if name in result), None), result.get(state_name or "")
    for name in OUTPUTS:
        if hasattr(result, name):
            return getattr(result, name), getattr(result, state_name or "state", None)
    if isinstance(result, tuple | list):
        return (result[0], result[1] if len(result) > 1 else None) if result else (None, None)
    return result, None
