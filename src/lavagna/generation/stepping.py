"""One token after the other through a model: what may be played from a recording is, and the rest is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BackendError, StateError
from ..models import BlockState, LanguageModel, ModelState
from ..ops.constants import Constants, keeping
from ..ops.dispatch import automatic_is_native
from ..ops.library import observed
from ..ops.recording import Recording, fixed
from ..ops.tree import map_tensors
from .reading import Reading

__all__ = ["Stepper"]


class Stepper:
    """Reads one token of each row a call, going on from a state of its own.

    Layers whose state has a fixed size are recorded in the first step, checked in the second, and played from then on;
    so are the final norm and the head. Layers with a growing cache, and all on other devices, are computed each time.
    Recordings are made anew after something has changed that decides how a step is computed (:meth:`_what_decides`).
    Modules and their hooks must stay as they are, and nobody may write on ``parameter.data``: torch does not note it.

    Args:
        model: the language model.
        state: after what was read; it stays as it is.
    """

    def __init__(self, model: LanguageModel, state: ModelState) -> None:
        self._model = model
        self._constants: Constants = {}
        self._clock = [0]  # the steps taken
        #: the whole state, where a model has a way of its own from tokens to hidden states
        self._whole = state if getattr(model.hidden, "__func__", None) is not LanguageModel.hidden else None
        if self._whole is None:
            model.check_state(state, state.rows if isinstance(state, ModelState) else 0)
        self._rows = state.rows
        self._layers = [
            _Layer(block, before, [block]) for block, before in zip(model.stack(), state.layers, strict=True)
        ]
        self._layers.append(_Layer(partial(_leave, model), None, [model.final_norm, model.head]))
        self._seen = state.seen
        self._modules = list(model.modules())
        self._parameters = [(m._parameters, name) for m in self._modules for name in m._parameters]
        self._facts: list[Any] = []

    def __call__(self, tokens: Tensor) -> Reading:
        """Read tokens, int64 [B].

        Returns:
            The reading after them. Its state must be copied (``fork``, ``reorder``, ``save``) before the next call, for
            that overwrites it; asking later raises StateError.

        Raises:
            StateError: the tokens are not as many as the state has rows.
        """
        if tokens.shape != (self._rows or len(tokens),):
            raise StateError(
                f"expected a token for each of {self._rows} rows, got tokens of shape {list(tokens.shape)}"
            )
        with torch.inference_mode(False), torch.no_grad(), keeping(self._constants):
            if self._whole is not None:
                hidden, self._whole = self._model.hidden(tokens[:, None], state=self._whole)
                return Reading(self._whole, self._model.head(hidden[:, -1]))
            x, seen = self._model.enter(tokens[:, None], self._seen)
            self._clock[0] += 1
            self._seen = seen
            self._look()
            for layer in self._layers:
                x = layer(x)
        layers = tuple(layer.state for layer in self._layers[:-1])
        return Reading(_Passing(layers, seen, self._clock), x.clone())

    def _look(self) -> None:
        """Forget recordings and constants that are no longer right."""
        facts = self._what_decides()
        if facts == self._facts:
            return
        self._constants.clear()
        self._facts = facts
        recordable = automatic_is_native() and self._model.embedding.weight.is_cpu
        recordable = recordable and not observed() and not _watched(self._modules)
        for layer in self._layers:
            layer.begin(recordable)

    def _what_decides(self) -> list[Any]:
        """Where each parameter lies and how often it was changed, and the settings that a step depends on."""
        parameters = [_marks(held[name]) for held, name in self._parameters]
        modes = [module.training for module in self._modules]
        autocast = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        return [parameters, modes, autocast, automatic_is_native(), observed(), torch.get_num_threads()]


def _leave(model: LanguageModel, x: Tensor, state: None, cu_seqlens: None) -> tuple[Tensor, None]:
    return model.head(model.final_norm(x)[:, -1]), None


def _marks(parameter: nn.Parameter | None) -> Any:
    if type(parameter) is not nn.Parameter or parameter.layout != torch.strided:
        return id(parameter)  # whether there is memory at an address is its own affair
    return parameter.data_ptr(), parameter.dtype, 0 if parameter.is_inference() else parameter._version


def _watched(modules: list[nn.Module]) -> bool:
    """Whether somebody wants to see modules being called, or has compiled them: a recording calls none."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_compiled_call_impl")
    return nn.modules.module._has_any_global_hook() or any(getattr(m, name) for m in modules for name in names)


def _known(module: nn.Module) -> bool:
    """Whether a module consists of parts of this library and of torch's, none of which takes numbers out of tensors."""
    return all(type(part).__module__.partition(".")[0] in ("lavagna", "torch") for part in module.modules())


class _Passing(ModelState):
    """The state that a stepper stands at, until it goes on. What is made of it is made of copies."""

    def __init__(self, layers: tuple[BlockState, ...], seen: Tensor | None, clock: list[int]) -> None:
        self._parts = (layers, seen)
        self._clock = clock
        self._step = clock[0]

    def _now(self) -> tuple[tuple[BlockState, ...], Tensor | None]:
        if self._clock[0] != self._step:
            raise StateError(
                "this state was overwritten by the next step: copy it (fork, reorder, save) before going on"
            )
        return self._parts

    @property
    def layers(self) -> tuple[BlockState, ...]:  # type: ignore[override]
        return self._now()[0]

    @property
    def seen(self) -> Tensor | None:  # type: ignore[override]
        return self._now()[1]

    def map_tensors(self, function: Callable[..., Tensor], *others: ModelState) -> ModelState:
        return super().map_tensors(lambda own, *rest: function(own.clone(), *rest), *others)

    def __reduce__(self) -> Any:
        copy = self.clone()
        return ModelState, (copy.layers, copy.seen)


class _Layer:
    """One function (x, state) -> (y, state) of the model, and its state.

    Its calls differ in x and the state alone. The first is recorded, the second both played and computed; if both
    agree, all others are played.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, Any]], state: Any, modules: list[nn.Module]) -> None:
        self._function = function
        self.state = state
        self._trusted = all(map(_known, modules))
        self._next = _Layer._compute

    def begin(self, recordable: bool) -> None:
        """Record the next call, if that may be done."""
        self._next = _Layer._record if recordable and fixed(self.state) else _Layer._compute

    def __call__(self, x: Tensor) -> Tensor:
        return self._next(self, x)

    def _compute(self, x: Tensor) -> Tensor:
        # A copy, for x may be what the recording below overwrites, and a state may be a part of it.
        y, self.state = self._function(x.clone(), self.state, None)
        return y

    def _record(self, x: Tensor) -> Tensor:
        own = map_tensors(lambda t: t.clone(memory_format=torch.contiguous_format), self.state)
        function = self._function
        try:
            recording = Recording(lambda x, state: function(x, state, None), x, own, trusted=self._trusted)
        except (BackendError, NotImplementedError, RuntimeError):  # a fault of the step itself is found again
            self._next = _Layer._compute
            return self._compute(x)
        self._recording, self.state = recording, own
        self._next = _Layer._prove
        return recording.y

    def _prove(self, x: Tensor) -> Tensor:
        proven, y, after = self._recording.prove(x)
        if proven:
            self._next = _Layer._play
            return self._recording.y
        del self._recording
        self._next = _Layer._compute
        self.state = after
        return y

    def _play(self, x: Tensor) -> Tensor:
        return self._recording(x)
