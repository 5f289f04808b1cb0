"""One token after the other through a model: what may be played from a recording is, and the rest is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import BackendError, StateError
from ..models import BlockState, LanguageModel, ModelState
from ..ops.constants import Constants, keeping
from ..ops.dispatch import automatic_is_native
from ..ops.recording import Recording, fixed
from ..ops.tree import map_tensors
from .reading import Reading

__all__ = ["Stepper"]


class Stepper:
    """Reads one token of each row a call, going on from a state of its own.

    Layers whose state has a fixed size are recorded in the first step, checked in the second, and played from then on;
    so are the final norm and the head. Layers with a growing cache, and all on other devices, are computed each time.

    Recordings are made anew after a parameter, the model's mode, autocast or the choice of implementations has changed.
    Modules and their hooks must stay as they are.

    Args:
        model: the language model.
        state: after what was read; it stays as it is.
    """

    def __init__(self, model: LanguageModel, state: ModelState) -> None:
        self._model = model
        self._constants: Constants = {}
        self._taken = 0
        #: the whole state, where a model has a way of its own from tokens to hidden states
        self._whole = state if type(model).hidden is not LanguageModel.hidden else None
        self._layers = [_Layer(block, before) for block, before in zip(model.stack(), state.layers, strict=True)]
        self._seen = state.seen
        self._last = _Layer(self._leave, None)
        self._parameters = [(m._parameters, name) for m in model.modules() for name in m._parameters]
        self._facts: list[Any] = []

    def __call__(self, tokens: Tensor) -> Reading:
        """Read tokens, int64 [B].

        Returns:
            The reading after them. Its state must be copied (``fork``, ``reorder``, ``save``) before the next call, for
            that overwrites it; asking later raises StateError.
        """
        self._taken += 1
        with torch.inference_mode(False), torch.no_grad(), keeping(self._constants):
            if self._whole is not None:
                hidden, self._whole = self._model.hidden(tokens[:, None], state=self._whole)
                return Reading(self._whole, self._model.head(hidden[:, -1]))
            self._look()
            x, self._seen = self._model.enter(tokens[:, None], self._seen)
            for layer in self._layers:
                x = layer(x)
            logits = self._last(x).clone()
        return Reading(_Passing(self, self._taken), logits)

    def _look(self) -> None:
        """Forget recordings and constants that are no longer right."""
        facts = self._what_decides()
        if facts == self._facts:
            return
        self._constants.clear()
        self._facts = facts
        recordable = automatic_is_native() and self._model.embedding.weight.device.type == "cpu"
        recordable = recordable and not _hooked(self._model)
        for layer in (*self._layers, self._last):
            layer.begin(recordable)

    def _what_decides(self) -> list[Any]:
        parameters = (held[name] for held, name in self._parameters)
        marks = [None if p is None else (p.data_ptr(), p.dtype, _version(p)) for p in parameters]
        return [*marks, automatic_is_native(), self._model.training, torch.is_autocast_enabled("cpu")]

    def _leave(self, x: Tensor, state: None, cu_seqlens: None) -> tuple[Tensor, None]:
        return self._model.head(self._model.final_norm(x)[:, -1]), None


class _Passing(ModelState):
    """The state that a stepper stands at, until it goes on."""

    def __init__(self, stepper: Stepper, step: int) -> None:
        self._stepper = stepper
        self._step = step

    def _now(self) -> Stepper:
        if self._stepper._taken != self._step:
            raise StateError(
                "this state was overwritten by the next step: copy it (fork, reorder, save) before going on"
            )
        return self._stepper

    @property
    def layers(self) -> tuple[BlockState, ...]:  # type: ignore[override]
        return tuple(layer.state for layer in self._now()._layers)

    @property
    def seen(self) -> Tensor | None:  # type: ignore[override]
        return self._now()._seen


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # what changes an inference tensor is not counted


def _hooked(model: nn.Module) -> bool:
    """Whether somebody wants to see the modules being called, which a recording does not do."""
    hooks = ("_forward_hooks", "_forward_pre_hooks")
    return nn.modules.module._has_any_global_hook() or any(getattr(m, h) for m in model.modules() for h in hooks)


class _Layer:
    """One function (x, state) -> (y, state) of the model, and its state.

    Its calls differ in x and the state alone. The first is recorded, the second both played and computed; if both
    agree, all others are played.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, Any]], state: Any) -> None:
        self._function = function
        self.state = state
        self._next = self._compute

    def begin(self, recordable: bool) -> None:
        """Record the next call, if that may be done."""
        self._next = self._record if recordable and fixed(self.state) else self._compute

    def __call__(self, x: Tensor) -> Tensor:
        return self._next(x)

    def _step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return self._function(x, state, None)

    def _compute(self, x: Tensor) -> Tensor:
        y, self.state = self._step(x, self.state)
        return y

    def _record(self, x: Tensor) -> Tensor:
        own = map_tensors(lambda t: t.clone(memory_format=torch.contiguous_format), self.state)
        try:
            self._recording = Recording(self._step, x, own)
        except BackendError:
            self._next = self._compute
            return self._compute(x)
        self.state = own
        self._next = self._prove
        return self._recording.y

    def _prove(self, x: Tensor) -> Tensor:
        before = map_tensors(torch.clone, self.state)
        if self._recording.proven(x):
            self._next = self._play
            return self._recording.y
        self.state = before
        self._next = self._compute
        return self._compute(x)

    def _play(self, x: Tensor) -> Tensor:
        if x is not self._recording.x:
            self._recording.x.copy_(x)
        return self._recording()
