"""What each operator is tested and measured on: one description that tests and benchmarks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import OPS
from .dispatch import Table

__all__ = ["Case", "Inputs", "OpSpec", "load_spec", "specs"]


class Case(NamedTuple):
    """One row of a spec.

    Fields:
        name: unique within the operator; a test's identifier.
        sizes: letter of shapes.py -> size.
        options: options of the public function, passed on as they are.
        variant: what the spec's ``make`` should vary (kind of gate, extreme values, layout, ...).
    """

    name: str
    sizes: Mapping[str, int]
    options: Mapping[str, Any] = {}
    variant: Mapping[str, Any] = {}


class Inputs(NamedTuple):
    """Arguments of one call.

    Fields:
        tensors: every tensor argument by name (None where the case leaves it out), state excepted.
        options: plain options.
        state: initial state, or None.
    """

    tensors: dict[str, Tensor | None]
    options: dict[str, Any]
    state: Any = None


class OpSpec(NamedTuple):
    """All that a conformance suite must know of an operator.

    Fields:
        op: name of the public function, a key of OPS.
        function: the public function.
        table: who can execute it.
        timed: names of the tensors with a time dimension (second), which are cut, packed and perturbed.
        make: (case, generator, dtype) -> Inputs, drawn afresh from the generator; any batch size in
            case.sizes["B"] and any length in case.sizes["T"], 0 included.
        cases: what tests run, in every form and implementation.
        bench: what benchmarks run.
        not_differentiable: names of tensors without gradient.
        state_shapes: (case) -> shapes of the state's tensors, independent of T; None where the state grows.
    """

    op: str
    function: Callable[..., Any]
    table: Table
    timed: tuple[str, ...]
    make: Callable[[Case, torch.Generator, torch.dtype], Inputs]
    cases: tuple[Case, ...]
    bench: tuple[Case, ...] = ()
    not_differentiable: tuple[str, ...] = ()
    state_shapes: Callable[[Case], tuple[tuple[int, ...], ...]] | None = None


def load_spec(op: str) -> OpSpec:
    """The spec of one operator."""
    return import_module(f"{OPS[op]}.spec").SPEC


def specs() -> list[OpSpec]:
    """The specs of all operators, in the order of OPS."""
    return [load_spec(op) for op in OPS]
