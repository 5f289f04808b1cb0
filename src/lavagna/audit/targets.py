"""From a name on the command line to a model: a folder, or a factory in a Python package."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ConfigError, InputError
from ..models import Classifier, LanguageModel
from .finding import one_line

__all__ = ["load_target"]


def load_target(target: str) -> Any:
    """Load what is to be audited.

    Args:
        target: a folder of a model of this package or of transformers; or ``package.module:factory``, a callable
            that returns a module or function, or a module itself. Packages are looked for where Python looks, and in
            the working directory.

    Raises:
        InputError: there is no such folder or factory, or it does not give a module or function.
    """
    if Path(target).is_dir():
        return _folder(Path(target))
    if ":" not in target:
        raise InputError(f"expected a model's folder or package.module:factory, got {target!r}, which is neither")
    return _factory(target)


def _folder(folder: Path) -> Any:
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"expected the folder of a model, but {str(folder)!r} has no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is no JSON: {error}") from None
    kinds = {"LanguageModel": LanguageModel, "Classifier": Classifier}
    if config.get("model") in kinds:
        return kinds[config["model"]].load(folder)
    if "model_type" not in config:
        raise ConfigError(f"expected a model of this package or of transformers, but {str(path)!r} names neither")
    return _transformers(folder)


def _transformers(folder: Path) -> Any:
    try:
        from transformers import AutoModelForCausalLM, logging
    except ImportError:
        raise InputError("a model of transformers needs that library: pip install 'lavagna[hf]'") from None
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    expected = f"expected a folder that transformers can load, got {str(folder)!r}"
    return _ran(expected, lambda: AutoModelForCausalLM.from_pretrained(folder, local_files_only=True))


def _factory(target: str) -> Any:
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise InputError(f"expected package.module:factory, got {target!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found = _ran(f"expected a module that can be imported, got {module_name!r}", import_module, module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise InputError(f"expected {module_name!r} to have {attribute!r}, and it has no {name!r}")
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise InputError(f"expected {target!r} to be a factory, got a {type(found).__name__}")
    needed = [
        p.name for p in _parameters(found) if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise InputError(f"expected {target!r} to be a factory without arguments, but it needs {', '.join(needed)}")
    made = _ran(f"expected {target!r} to make a model", found)
    if not callable(made):
        raise InputError(f"expected {target!r} to return a module or a function, got a {type(made).__name__}")
    return made


def _parameters(factory: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):  # written in C
        return []


def _ran(expected: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What somebody else's code returns.

    Raises:
        InputError: it raised, or left the process.
    """
    try:
        return function(*arguments)
    except (Exception, SystemExit) as error:
        raise InputError(f"{expected}, but it raised {one_line(error)}") from error
