"""The native part: whether it is there, what it can do, and every reason when it cannot.

Importing this module loads neither the extension nor torch. LAVAGNA_CPU_ISA names the instruction set that kernels
run on, one of :func:`instruction_sets`; by default it is the widest.
"""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import NamedTuple

from .errors import BackendError, unknown_name

__all__ = [
    "available",
    "bfloat16_products",
    "compiler",
    "instruction_set",
    "instruction_sets",
    "kernels",
    "missing",
    "module",
    "openmp",
    "refusals",
]

EXTENSION = "lavagna._native"

#: names of the operators (see lavagna.ops.OPS) for which the extension has kernels
KERNELS: frozenset[str] = frozenset({"gated_delta", "gated_linear", "selective_scan", "short_conv"})

CHOICE = "LAVAGNA_CPU_ISA"

COMPILERS = ("c++", "g++", "clang++", "cl")


class _Loaded(NamedTuple):
    module: ModuleType | None
    reasons: list[str]


_loaded: _Loaded | None = None


def _load() -> _Loaded:
    global _loaded
    if _loaded is None:
        _loaded = _try_to_load()
    return _loaded


def _try_to_load() -> _Loaded:
    try:
        loaded = import_module(EXTENSION)
    except ModuleNotFoundError as error:
        if error.name != EXTENSION:
            raise
        return _Loaded(None, [_not_built()])
    except ImportError as error:
        reason = f"the native extension is built but cannot be loaded ({error}); reinstall lavagna"
        return _Loaded(None, [reason])
    chosen = os.environ.get(CHOICE)
    if chosen:
        known = loaded.instruction_sets()
        if chosen not in known:
            raise BackendError(unknown_name(f"{CHOICE} on this processor", chosen, known))
        loaded.choose_instruction_set(known.index(chosen))
    return _Loaded(loaded, [])


@cache
def module() -> ModuleType:
    """The extension, ready to run: its threads are those of torch's OpenMP runtime.

    Raises:
        BackendError: it cannot be used; every reason is listed.
    """
    loaded = _load().module
    if loaded is None:
        raise BackendError("; ".join(missing()))
    addresses = _torch_openmp()
    if addresses is not None:
        loaded.set_openmp(*addresses)
    if _forked:
        loaded.use_one_thread()
    return loaded


def _in_child() -> None:
    """In the child of a fork torch's threads are gone, whoever used them, and its runtime does not know."""
    global _forked
    _forked = True
    if _loaded is not None and _loaded.module is not None:
        _loaded.module.use_one_thread()


_forked = False
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _torch_openmp() -> tuple[int, int, int] | None:
    """Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in the runtime that torch has loaded.

    They are looked up where torch's library finds them, whatever name its wheel gave to the runtime. None where it
    has another kind of runtime: kernels then run on one thread.
    """
    import ctypes

    import torch._C

    library = ctypes.CDLL(torch._C.__file__)
    try:
        functions = (library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads)
    except AttributeError:
        return None
    parallel, number, count = (ctypes.cast(function, ctypes.c_void_p).value for function in functions)
    return (parallel, number, count) if parallel and number and count else None


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
    loaded = _load().module
    return None if loaded is None else loaded.compiler()


def instruction_sets() -> list[str]:
    """The instruction sets that the extension can use on this processor, the widest last."""
    loaded = _load().module
    return [] if loaded is None else loaded.instruction_sets()


def instruction_set() -> str | None:
    """The instruction set that kernels run on; None without the extension."""
    loaded = _load().module
    return None if loaded is None else loaded.instruction_set()


def bfloat16_products() -> bool:
    """Whether kernels have products of bfloat16 numbers here, which torch.set_float32_matmul_precision allows."""
    loaded = _load().module
    return loaded is not None and loaded.bfloat16_products()


def openmp() -> bool:
    """Whether kernels share torch's threads; without, each call runs on one. Loads torch."""
    return available() and _torch_openmp() is not None


def kernels() -> frozenset[str]:
    """Names of the operators that have native kernels which can be used in this process."""
    return KERNELS if available() else frozenset()


def refusals(op_name: str) -> list[str]:
    """Every reason why ``impl="cpu"`` cannot run the operator here, each a clause; empty when it can."""
    reasons = missing()
    if op_name not in KERNELS:
        reasons.append(f"{op_name} has no native kernel yet")
    return reasons


# torch.compile takes what they return for a constant: it could not follow an import.
available._dynamo_marked_constant = True  # type: ignore[attr-defined]
refusals._dynamo_marked_constant = True  # type: ignore[attr-defined]
