"""Lavagna: sequence models with a cache that grows or a memory of fixed size, on any machine.

Importing this package imports neither torch nor anything else that takes time: each name below is
looked up when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .generation import generate as generate
    from .models import Classifier as Classifier
    from .models import ClassifierConfig as ClassifierConfig
    from .models import LanguageModel as LanguageModel
    from .models import LanguageModelConfig as LanguageModelConfig
    from .models import ModelState as ModelState

__version__ = "0.1.0"

#: name -> the package that it comes from; modules of this package are found by their own names
_NAMES = {
    "Classifier": "models",
    "ClassifierConfig": "models",
    "LanguageModel": "models",
    "LanguageModelConfig": "models",
    "ModelState": "models",
    "generate": "generation",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    modules = [module.name for module in iter_modules(__path__) if not module.name.startswith("_")]
    return sorted(["__version__", *_NAMES, *modules])
