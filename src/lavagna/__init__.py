"""Lavagna: sequence models with a cache that grows or a memory of fixed size, on any machine.

Importing this package imports neither torch nor anything else that takes time: each name below is
looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: name -> the module that it comes from; a package stands for itself
_LAZY: dict[str, str] = {
    "Classifier": "models",
    "LanguageModel": "models",
    "LanguageModelConfig": "models",
    "ModelState": "models",
    "generate": "generation",
}
_PACKAGES = (
    "audit",
    "checkpoints",
    "cost",
    "data",
    "errors",
    "evaluation",
    "generation",
    "integrations",
    "mixers",
    "models",
    "native",
    "ops",
    "report",
    "scratch",
    "studies",
    "tasks",
    "training",
)

__all__ = ["__version__", *_LAZY, *_PACKAGES]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
