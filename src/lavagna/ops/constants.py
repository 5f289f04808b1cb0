"""What follows from parameters alone, computed once in a run of steps during which they do not change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["Constants", "constant", "keeping", "widened"]

#: (what it is made of, how) -> the value; what it is made of is held too, so that no other takes its identity
Constants = dict[tuple[int, Any], tuple[Tensor, Tensor]]

_thread = local()


@contextmanager
def keeping(constants: Constants) -> Iterator[None]:
    """Inside, in this thread, constants are taken from here and left here.

    Whoever keeps them must let go of them when a parameter has changed: generation keeps them from step to step of one
    stream, and looks at the parameters before each.
    """
    before = getattr(_thread, "constants", None)
    _thread.constants = constants
    try:
        yield
    finally:
        _thread.constants = before


def constant(parameter: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """function(parameter), perhaps from an earlier step; `function` must be the same object each time."""
    constants = _kept_for(parameter)
    if constants is None:
        return function(parameter)
    key = (id(parameter), function)
    if key not in constants:
        with _disable_current_modes():  # nobody who records the step shall take it for a part of it
            constants[key] = (parameter, function(parameter))
    return constants[key][1]


def widened(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in another dtype; of a parameter perhaps from an earlier step."""
    if tensor.dtype == dtype:
        return tensor
    constants = _kept_for(tensor)
    if constants is None:
        return tensor.to(dtype)
    key = (id(tensor), dtype)
    if key not in constants:
        with _disable_current_modes():
            constants[key] = (tensor, tensor.to(dtype))
    return constants[key][1]


def _kept_for(tensor: Tensor) -> Constants | None:
    if type(tensor) is not nn.Parameter or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    return getattr(_thread, "constants", None)
