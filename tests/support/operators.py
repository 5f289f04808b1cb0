"""Operators called from their specs: inputs drawn, cut and packed; answers with every gradient."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.ops import OPS
from lavagna.ops.dispatch import Result, Row
from lavagna.ops.spec import Case, Inputs, OpSpec, load_spec
from lavagna.ops.tree import leaves, map_tensors, named_leaves, select

Answer = dict[str, Tensor]


# Which operators, rows and cases there are -----------------------------------------------------------------


def existing_specs() -> list[OpSpec]:
    found = []
    for op in OPS:
        try:
            found.append(load_spec(op))
        except Exception:  # noqa: BLE001, PERF203
            continue
    return found


SPECS = existing_specs()


def rows(spec: OpSpec, *, reference: bool = True) -> list[Row]:
    """The rows that can run on this machine."""
    return [r for r in spec.table.rows if not spec.table.reasons(r) and (reference or r.impl != "reference")]


def reference_row(spec: OpSpec) -> Row:
    """The row of the literal recurrence."""
    return next(r for r in spec.table.rows if r.impl == "reference")


def variety(spec: OpSpec, **sizes: int) -> list[Case]:
    """One case for each combination of options and variant, resized."""
    chosen: dict[str, Case] = {}
    for case in spec.cases:
        chosen.setdefault(repr((sorted(case.options.items()), sorted(case.variant.items()))), case)
    return [resized(case, **sizes) for case in chosen.values()]


def resized(case: Case, **sizes: int) -> Case:
    """The same case with other sizes."""
    return case._replace(sizes={**case.sizes, **sizes})


def each(
    cases: Callable[[OpSpec], list[Case]] | None = None, *, reference: bool = True
) -> pytest.MarkDecorator:
    """Parametrize a test with (spec, row), and with the cases that the row can run if `cases` is given."""
    names = "spec, row" if cases is None else "spec, row, case"
    return pytest.mark.parametrize(names, list(_parameters(cases, reference)))


def _parameters(cases: Callable[[OpSpec], list[Case]] | None, reference: bool) -> Iterator[Any]:
    for spec in SPECS:
        can_run = rows(spec, reference=reference)
        if cases is None:
            for row in can_run:
                yield pytest.param(spec, row, id=f"{spec.op}-{row.impl}.{row.form}")
        else:
            for case in cases(
                spec
            ):  # cases outside, so that tests that share a cached reference are neighbours
                for row in can_run:
                    yield pytest.param(spec, row, case, id=f"{spec.op}-{row.impl}.{row.form}-{case.name}")


# Inputs ----------------------------------------------------------------------------------------------------


def draw(spec: OpSpec, case: Case, dtype: torch.dtype) -> Inputs:
    """The inputs of a case: the same ones each time."""
    seed = zlib.crc32(f"{spec.op} {case.name}".encode())
    return spec.make(case, torch.Generator().manual_seed(seed), dtype)


def mapped(inputs: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """Apply a function to each tensor, those of the state included."""
    tensors = {name: t if t is None else function(t) for name, t in inputs.tensors.items()}
    return Inputs(tensors, inputs.options, map_tensors(function, inputs.state))


def double(inputs: Inputs) -> Inputs:
    """The same numbers in float64 or complex128."""
    return mapped(inputs, _double)


def _double(tensor: Tensor) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor


def is_timed(spec: OpSpec, name: str, tensor: Tensor | None) -> bool:
    """Whether the tensor is [B, T, ...]; some arguments may also be given without time, as [HV] or [D, N]."""
    return tensor is not None and name in spec.timed and (tensor.ndim >= 3 or tensor.dtype == torch.bool)


def timed_names(spec: OpSpec, inputs: Inputs) -> list[str]:
    """Names of the arguments that are [B, T, ...] in this call."""
    return [name for name, tensor in inputs.tensors.items() if is_timed(spec, name, tensor)]


def changed(inputs: Inputs, **tensors: Tensor) -> Inputs:
    """The same call with some tensors replaced."""
    return inputs._replace(tensors={**inputs.tensors, **tensors})


def piece(spec: OpSpec, inputs: Inputs, start: int, stop: int, state: Any) -> Inputs:
    """Tokens start to stop of a call, with another initial state."""
    cut = {name: inputs.tensors[name][:, start:stop] for name in timed_names(spec, inputs)}
    return changed(inputs, **cut)._replace(state=state)


def batch_rows(spec: OpSpec, inputs: Inputs, index: list[int]) -> Inputs:
    """Some rows of the batch of a call."""
    chosen = torch.tensor(index)
    cut = {name: inputs.tensors[name].index_select(0, chosen) for name in timed_names(spec, inputs)}
    return changed(inputs, **cut)._replace(state=select(inputs.state, chosen))


# Calls and answers -----------------------------------------------------------------------------------------


@cache
def _parameters_of(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def accepts(spec: OpSpec, keyword: str) -> bool:
    """Whether the operator has this parameter."""
    return keyword in _parameters_of(spec.function)


def run(spec: OpSpec, row: Row, inputs: Inputs, **more: Any) -> Result:
    """Call the public function and have `row` execute it."""
    choice = {"impl": row.impl, "form": row.form}
    choice = {name: value for name, value in choice.items() if accepts(spec, name)}
    return spec.function(
        **{**inputs.tensors, **inputs.options, "state": inputs.state, "return_state": True, **choice, **more}
    )


def with_gradients(spec: OpSpec, inputs: Inputs) -> Inputs:
    """The same call on fresh leaves that ask for gradients."""

    def leaf(tensor: Tensor) -> Tensor:
        fresh = tensor.detach()
        return fresh.requires_grad_(fresh.is_floating_point() or fresh.is_complex())

    tensors = {
        name: t if t is None or name in spec.not_differentiable else leaf(t)
        for name, t in inputs.tensors.items()
    }
    return Inputs(tensors, inputs.options, map_tensors(leaf, inputs.state))


def named_inputs(inputs: Inputs) -> Answer:
    """Every tensor of a call that asks for a gradient, by name."""
    tensors = {name: t for name, t in inputs.tensors.items() if t is not None and t.requires_grad}
    return tensors | {f"state{n and '.'}{n}": t for n, t in named_leaves(inputs.state) if t.requires_grad}


def upstream(shape: torch.Size, dtype: torch.dtype, rounded: torch.dtype, seed: int = 0) -> Tensor:
    """A random gradient that is exact in `rounded`, so that it is the same one in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        both = torch.randn(*shape, 2, generator=generator, dtype=torch.float64).to(rounded).double()
        return torch.view_as_complex(both).to(dtype)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(rounded).to(dtype)


def backward(
    result: Result, inputs: Answer, rounded: torch.dtype = torch.float32, *, state_only: bool = True
) -> Answer:
    """Gradients of `inputs` from random upstream gradients of the output and the state, and of the state alone."""
    final = [t for t in leaves(result.state) if t.requires_grad]
    losses = {"output and state": [result.output, *final]}
    if state_only:
        losses["state"] = final
    gradients: Answer = {}
    for loss, results in losses.items():
        results = [t for t in results if t.requires_grad]
        ups = [upstream(t.shape, t.dtype, rounded, seed) for seed, t in enumerate(results)]
        if results and inputs:
            found = torch.autograd.grad(
                results, list(inputs.values()), ups, retain_graph=True, allow_unused=True
            )
        else:
            found = [None] * len(inputs)
        for (name, tensor), gradient in zip(inputs.items(), found, strict=True):
            gradients[f"gradient of {name} from {loss}"] = (
                torch.zeros_like(tensor) if gradient is None else gradient
            )
    return gradients


def values(result: Result) -> Answer:
    """Output and final state by name."""
    return {"output": result.output} | {f"state{n and '.'}{n}": t for n, t in named_leaves(result.state)}


def answer(
    spec: OpSpec, row: Row, inputs: Inputs, rounded: torch.dtype = torch.float32, **more: Any
) -> Answer:
    """Output, final state and every gradient of one call."""
    inputs = with_gradients(spec, inputs)
    result = run(spec, row, inputs, **more)
    found = values(result) | backward(result, named_inputs(inputs), rounded)
    return {name: t.detach() for name, t in found.items()}


@cache
def _expected(op: str, name: str, sizes: tuple, dtype: torch.dtype, wide: bool) -> Answer:
    spec = load_spec(op)
    case = resized(next(c for c in spec.cases if c.name == name), **dict(sizes))
    inputs = draw(spec, case, dtype)
    return answer(spec, reference_row(spec), double(inputs) if wide else inputs, dtype)


def same_reference(spec: OpSpec, case: Case, dtype: torch.dtype) -> Answer:
    """The reference's answer to a case in the same dtype; cached, for it is a loop over tokens."""
    return _expected(spec.op, case.name, tuple(case.sizes.items()), dtype, False)


def exact_reference(spec: OpSpec, case: Case, dtype: torch.dtype) -> Answer:
    """The reference's answer in float64 to the very numbers that `dtype` holds; cached."""
    return _expected(spec.op, case.name, tuple(case.sizes.items()), dtype, True)
