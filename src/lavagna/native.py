"""The native part: whether it is there, what it can do, and every reason when it cannot.

Importing this module loads neither the extension nor torch.
"""

from __future__ import annotations

import shutil
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

__all__ = ["available", "compiler", "instruction_sets", "kernels", "missing", "refusals"]

EXTENSION = "lavagna._native"

#: names of the operators (see lavagna.ops.OPS) for which the extension has kernels
KERNELS: frozenset[str] = frozenset()

COMPILERS = ("c++", "g++", "clang++", "cl")


class _Loaded(NamedTuple):
    module: ModuleType | None
    reasons: list[str]


@cache
def _load() -> _Loaded:
    try:
        return _Loaded(import_module(EXTENSION), [])
    except ModuleNotFoundError as error:
        if error.name != EXTENSION:
            raise
        return _Loaded(None, [_not_built()])
    except ImportError as error:
        reason = f"the native extension is built but cannot be loaded ({error}); reinstall lavagna"
        return _Loaded(None, [reason])


def _not_built() -> str:
    if any(shutil.which(name) for name in COMPILERS):
        remedy = "there is a C++ compiler now, so reinstall lavagna with LAVAGNA_REQUIRE_NATIVE=1 to see why"
    else:
        remedy = "install a C++17 compiler and Python's headers (Debian: g++ python3-dev), then reinstall lavagna"
    return f"the native extension was not built when lavagna was installed; {remedy}"


def available() -> bool:
    """Whether the native extension can be used in this process."""
    return _load().module is not None


def missing() -> list[str]:
    """Every reason why the extension cannot be used, each with its remedy; empty when it can."""
    return list(_load().reasons)


def compiler() -> str | None:
    """The compiler that built the extension, with its version; None without the extension."""
    module = _load().module
    return None if module is None else module.compiler()


def instruction_sets() -> list[str]:
    """The instruction sets that the extension can use on this processor, the widest last."""
    module = _load().module
    return [] if module is None else module.instruction_sets()


def kernels() -> frozenset[str]:
    """Names of the operators that have native kernels which can be used in this process."""
    return KERNELS if available() else frozenset()


def refusals(op_name: str) -> list[str]:
    """Every reason why ``impl="cpu"`` cannot run the operator here, each a clause; empty when it can."""
    reasons = missing()
    if op_name not in KERNELS:
        reasons.append(f"{op_name} has no native kernel yet")
    return reasons
