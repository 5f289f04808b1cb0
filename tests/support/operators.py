"""Operators called from their specs: inputs drawn, cut and packed; answers with every gradient."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.ops.dispatch import Result, Row
from lavagna.ops.spec import Case, Inputs, OpSpec, specs
from lavagna.ops.tree import concatenate, leaves, map_tensors, named_leaves, select

from ..exceptions import exempt

Answer = dict[str, Tensor]


# Which operators, rows and cases there are -----------------------------------------------------------------

SPECS = specs()


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


def few(spec: OpSpec, **sizes: int) -> list[Case]:
    """Few of the variety: every value of every option, and every argument left out and given in each of its ranks."""
    cases = variety(spec, **sizes)
    missing, chosen = set[tuple[str, str]]().union(*(_ways(spec, case) for case in cases)), cases[:1]
    while missing := missing.difference(*(_ways(spec, case) for case in chosen)):
        chosen.append(max(cases, key=lambda case: len(_ways(spec, case) & missing)))
    return chosen


def _ways(spec: OpSpec, case: Case) -> set[tuple[str, str]]:
    """How a case calls the operator, apart from numbers and sizes."""
    call = draw(spec, resized(case, B=1, T=1))
    ranks = {name: None if tensor is None else tensor.ndim for name, tensor in call.tensors.items()}
    return {(key, repr(value)) for key, value in {**call.options, **ranks, "state": call.state is None}.items()}


def resized(case: Case, **sizes: int) -> Case:
    """The same case with other sizes."""
    return case._replace(sizes={**case.sizes, **sizes})


def every_shape(spec: OpSpec) -> list[Case]:
    """One case for each combination of sizes other than B and T, seven tokens each."""
    chosen: dict[str, Case] = {}
    for case in spec.cases:
        chosen.setdefault(repr(sorted(resized(case, B=0, T=0).sizes.items())), resized(case, B=2, T=7))
    return list(chosen.values())


Cases = Callable[[OpSpec], Sequence[Case]]


def each(cases: Cases, *, reference: bool = True, native_subset: bool = False) -> pytest.MarkDecorator:
    """Run a test on every row of every operator, with each of the cases chosen from its spec.

    Args:
        cases: chosen from a spec.
        reference: on the row of the reference too.
        native_subset: on native rows it belongs to the marked subset.
    """
    parameters = [
        pytest.param(
            spec,
            row,
            case,
            id=f"{spec.op}-{row.impl}.{row.form}-{case.name}",
            marks=[pytest.mark.subset] if native_subset and row.impl == "cpu" else [],
        )
        for spec in SPECS
        for case in cases(spec)
        for row in rows(spec, reference=reference)  # innermost: they share a remembered reference
    ]
    return pytest.mark.parametrize(("spec", "row", "case"), parameters)


# Inputs ----------------------------------------------------------------------------------------------------


def draw(spec: OpSpec, case: Case, dtype: torch.dtype = torch.float32, seed: int = 0) -> Inputs:
    """The inputs of a case: the same ones each time."""
    seed = zlib.crc32(f"{spec.op} {case.name} {seed}".encode())
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


def timed_names(spec: OpSpec, inputs: Inputs) -> list[str]:
    """Names of the arguments that are [B, T, ...] here; some may also be given as [HV] or [D, N]."""
    return [
        name
        for name, tensor in inputs.tensors.items()
        if tensor is not None and name in spec.timed and (tensor.ndim >= 3 or tensor.dtype == torch.bool)
    ]


def changed(inputs: Inputs, **tensors: Tensor) -> Inputs:
    """The same call with some tensors replaced."""
    return inputs._replace(tensors={**inputs.tensors, **tensors})


def piece(spec: OpSpec, inputs: Inputs, start: int, stop: int, state: Any) -> Inputs:
    """Tokens start to stop of a call, from another initial state."""
    cut = {name: inputs.tensors[name][:, start:stop] for name in timed_names(spec, inputs)}
    return changed(inputs, **cut)._replace(state=state)


def batch_rows(spec: OpSpec, inputs: Inputs, index: list[int]) -> Inputs:
    """Some rows of the batch of a call."""
    chosen = torch.tensor(index)
    cut = {name: inputs.tensors[name].index_select(0, chosen) for name in timed_names(spec, inputs)}
    return changed(inputs, **cut)._replace(state=select(inputs.state, chosen))


def packed(spec: OpSpec, case: Case, lengths: Sequence[int]) -> tuple[Inputs, Tensor]:
    """Sequences of these lengths in one row, each with its own initial state; float64. Also their boundaries."""
    inputs = draw(spec, resized(case, B=1, T=sum(lengths)))
    state = draw(spec, resized(case, B=len(lengths), T=1)).state
    return double(inputs._replace(state=state)), torch.tensor([0, *lengths]).cumsum(0)


# Calls and answers -----------------------------------------------------------------------------------------


def accepts(spec: OpSpec, keyword: str) -> bool:
    """Whether the operator has this parameter."""
    return keyword in _defaults(spec.function)


@cache
def _defaults(function: Callable[..., Any]) -> dict[str, Any]:
    return {name: p.default for name, p in inspect.signature(function).parameters.items()}


def bound(spec: OpSpec, case: Case, contract: str) -> bool:
    """Whether a contract binds the operator with the options of this case."""
    return not exempt(spec.op, contract, **{**_defaults(spec.function), **case.options})


def has_state(spec: OpSpec, options: Mapping[str, Any]) -> bool:
    """Whether a call with these options can be cut, and so has a state."""
    return not exempt(spec.op, "cut anywhere", **{**_defaults(spec.function), **options})


def run(spec: OpSpec, row: Row, inputs: Inputs, **more: Any) -> Result:
    """Call the public function and have `row` execute it."""
    choice = {"impl": row.impl, "form": row.form}
    choice = {name: value for name, value in choice.items() if accepts(spec, name)}
    asked = {"state": inputs.state, "return_state": has_state(spec, inputs.options), **choice, **more}
    return spec.function(**inputs.tensors, **inputs.options, **asked)


def asking(spec: OpSpec, inputs: Inputs, only: str | None = None) -> Inputs:
    """The same call on leaves that ask for gradients (all, or one by name) and keep the strides of the inputs."""

    def leaf(tensor: Tensor) -> Tensor:
        fresh = tensor.detach()
        return fresh.requires_grad_(fresh.is_floating_point() or fresh.is_complex())

    tensors = {
        name: t if t is None or name in spec.not_differentiable else leaf(t) for name, t in inputs.tensors.items()
    }
    asked = Inputs(tensors, inputs.options, map_tensors(leaf, inputs.state))
    if only is not None:
        for name, tensor in named_inputs(asked).items():
            tensor.requires_grad_(name == only)
    return asked


def named_inputs(inputs: Inputs) -> Answer:
    """Every tensor of a call that asks for a gradient, by name."""
    named = {name: t for name, t in named_leaves(_Both(inputs.tensors, inputs.state)) if t.requires_grad}
    assert all(tensor.is_leaf for tensor in named.values()), "a view of a leaf would get no gradient"
    return named


class _Both:
    """The tensors and the state of a call as one tree."""

    def __init__(self, tensors: dict[str, Tensor | None], state: Any) -> None:
        self.parts = {**tensors, "state": state}

    def named_tensors(self) -> Iterator[tuple[str, Any]]:
        yield from self.parts.items()


def named_values(result: Result) -> Answer:
    """Output and final state by name."""
    return dict(named_leaves(result))


def upstream(shape: torch.Size, dtype: torch.dtype, rounded: torch.dtype, seed: int = 0) -> Tensor:
    """A random gradient that is exact in the dtype `rounded`, so that every dtype gets the same numbers."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_complex:
        parts = torch.randn(*shape, 2, generator=generator, dtype=torch.float64)
        return torch.view_as_complex(parts.to(rounded).double()).to(dtype)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(rounded).to(dtype)


def gradients(result: Result, inputs: Answer, rounded: torch.dtype = torch.float32) -> Answer:
    """Gradients of `inputs` from random upstream gradients of the output alone and of the state alone."""
    found: Answer = {}
    for loss, results in (("output", [result.output]), ("state", leaves(result.state))):
        # Seeds before the filter: a result has the same upstream gradient whichever others are differentiable.
        ups = {t: upstream(t.shape, t.dtype, rounded, seed) for seed, t in enumerate(results) if t.requires_grad}
        each_gradient: Sequence[Tensor | None] = [None] * len(inputs)
        if ups and inputs:
            each_gradient = torch.autograd.grad(
                list(ups), list(inputs.values()), list(ups.values()), retain_graph=True, allow_unused=True
            )
        for (name, tensor), gradient in zip(inputs.items(), each_gradient, strict=True):
            found[f"d {loss} / d {name}"] = torch.zeros_like(tensor) if gradient is None else gradient
    return found


def answer(spec: OpSpec, row: Row, inputs: Inputs, rounded: torch.dtype = torch.float32, **more: Any) -> Answer:
    """Output, final state and every gradient of one call."""
    inputs = asking(spec, inputs)
    return all_of(run(spec, row, inputs, **more), inputs, rounded)


def all_of(result: Result, inputs: Inputs, rounded: torch.dtype = torch.float32) -> Answer:
    """Output, final state and every gradient of a result."""
    found = named_values(result) | gradients(result, named_inputs(inputs), rounded)
    return {name: t.detach() for name, t in found.items()}


def pieces(spec: OpSpec, row: Row, inputs: Inputs, cuts: Sequence[int]) -> Answer:
    """The answer of a call that is run in pieces, each from the state of the one before."""
    inputs = asking(spec, inputs)
    tokens = inputs.tensors[timed_names(spec, inputs)[0]].shape[1]
    outputs, state = [], inputs.state
    for start, stop in zip([0, *cuts], [*cuts, tokens], strict=True):
        output, state = run(spec, row, piece(spec, inputs, start, stop, state))
        outputs.append(output)
    return all_of(Result(torch.cat(outputs, 1), state), inputs)


# References, remembered because they are loops over tokens --------------------------------------------------


_remembered: dict[tuple[Any, ...], Answer] = {}


def remembered(compute: Callable[[], Answer], *key: Any) -> Answer:
    """The result of `compute`, which is called once for each key."""
    if key not in _remembered:
        _remembered[key] = compute()
    return _remembered[key]


def references(
    spec: OpSpec, case: Case, inputs: Inputs, dtype: torch.dtype = torch.float32, what: str = ""
) -> tuple[Answer, Answer]:
    """The reference's answers to the same numbers in their own dtype and in float64.

    Args:
        inputs: what the answers are to; `case` and `what` name it, for the same name answers are remembered.
        dtype: of the inputs.
    """
    row, key = reference_row(spec), _key(spec, case, dtype, what)
    same = remembered(lambda: answer(spec, row, inputs, dtype), "same", *key)
    return same, remembered(lambda: answer(spec, row, double(inputs), dtype), "exact", *key)


def exact_reference(spec: OpSpec, case: Case) -> Answer:
    """The reference's answer in float64 to the float32 inputs of a case."""
    key = _key(spec, case, torch.float32, "")
    return remembered(lambda: answer(spec, reference_row(spec), double(draw(spec, case))), "exact", *key)


def _key(spec: OpSpec, case: Case, dtype: torch.dtype, what: str) -> tuple[Any, ...]:
    return spec.op, case.name, tuple(case.sizes.items()), dtype, what


def exact_alone(spec: OpSpec, case: Case, lengths: Sequence[int]) -> Answer:
    """The reference's answer to packed sequences, each run by itself."""

    def compute() -> Answer:
        inputs, bounds = packed(spec, case, lengths)
        inputs = asking(spec, inputs)
        results = []
        for m, (start, stop) in enumerate(pairwise(bounds.tolist())):
            alone = piece(spec, inputs, start, stop, select(inputs.state, torch.tensor([m])))
            results.append(run(spec, reference_row(spec), alone))
        together = Result(torch.cat([r.output for r in results], 1), concatenate([r.state for r in results]))
        return all_of(together, inputs)

    return remembered(compute, "alone", spec.op, case.name, tuple(lengths))
