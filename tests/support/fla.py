"""flash-linear-attention without a GPU: importing it warns; its plain functions run."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["fla"]


@functools.cache
def fla(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of fla.ops.<module>."""
    with warnings.catch_warnings():
        for category, message in (
            (UserWarning, "Triton is not supported"),
            (ImportWarning, "Flash Attention is not installed"),
            (DeprecationWarning, r"`torch\.jit\.script"),
        ):
            warnings.filterwarnings("ignore", message=message, category=category)
        return getattr(importlib.import_module(f"fla.ops.{module}"), name)
