"""The specs hold what the suites rely on: every length, size, option and extreme that has broken something before."""

from __future__ import annotations

import inspect
from itertools import chain

import pytest
import torch
from torch import Tensor

from lavagna.ops import OPS
from lavagna.ops.spec import Inputs, OpSpec

from ..exceptions import CONTRACTS, EXCEPTIONS
from ..support.operators import SPECS, asking, draw, exact_reference, named_inputs, resized, timed_names, variety

LENGTHS = {0, 1, 2, 63, 64, 65, 100, 1000}
KEYS = {1, 48, 60, 64, 100, 128, 256}
COMMON = {"state", "return_state", "cu_seqlens", "form", "impl"}

each_spec = pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.op) for spec in SPECS])


def sizes(spec: OpSpec, letter: str) -> set[int]:
    return {case.sizes[letter] for case in spec.cases if letter in case.sizes}


def all_inputs(spec: OpSpec) -> list[Inputs]:
    return [draw(spec, case) for case in spec.cases]


@each_spec
def test_names_are_unique(spec: OpSpec) -> None:
    names = [case.name for case in spec.cases]
    assert len(set(names)) == len(names)
    names = [case.name for case in spec.bench]
    assert len(set(names)) == len(names) > 0


@each_spec
def test_lengths_and_sizes(spec: OpSpec) -> None:
    assert sizes(spec, "T") >= LENGTHS
    if sizes(spec, "K"):
        assert sizes(spec, "K") >= KEYS
        assert any(case.sizes["K"] != case.sizes["V"] for case in spec.cases)
    if sizes(spec, "HV"):
        assert any(case.sizes["HV"] > case.sizes["H"] > 1 for case in spec.cases)


@each_spec
def test_arguments_are_those_of_the_function(spec: OpSpec) -> None:
    parameters = inspect.signature(spec.function).parameters
    tensors = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for inputs in all_inputs(spec):
        assert [name for name in parameters if name in inputs.tensors] == list(inputs.tensors)
        assert set(tensors) <= set(inputs.tensors) <= set(parameters)
        assert set(inputs.options) <= set(parameters) - COMMON - set(inputs.tensors)
    assert set(spec.timed) | set(spec.not_differentiable) <= set(tensors) | set(parameters) - COMMON


@each_spec
def test_every_option_is_used_and_left_alone(spec: OpSpec) -> None:
    calls = [{"state": i.state, **i.tensors, **i.options} for i in all_inputs(spec)]
    for name, parameter in inspect.signature(spec.function).parameters.items():
        default = parameter.default
        if name in COMMON - {"state"} or default is inspect.Parameter.empty:
            continue
        values = [call.get(name, default) for call in calls]
        used = [isinstance(value, Tensor | tuple) or value != default for value in values]
        assert any(used), f"no case has another {name} than {default}"
        assert not all(used), f"no case leaves {name} at {default}"


@each_spec
def test_extreme_decays_meet_common_ones(spec: OpSpec) -> None:
    """-1e4 and -87 beside what is near zero, in one sequence: where cumulative sums lose the small ones."""
    decays = [i.tensors["log_decay"] for i in all_inputs(spec) if i.tensors.get("log_decay") is not None]
    for ndim in {decay.ndim for decay in decays if decay.ndim > 1}:
        assert any(
            decay.numel() and decay.min() <= -1e4 and (decay == -87).any() and (decay > -0.2).any()
            for decay in decays
            if decay.ndim == ndim
        )
    assert all((decay <= 0).all() for decay in decays)


@each_spec
def test_write_strengths_of_nothing_all_and_twice(spec: OpSpec) -> None:
    strengths = [i.tensors["beta"] for i in all_inputs(spec) if i.tensors.get("beta") is not None]
    if strengths:
        assert {0.0, 1.0, 2.0} <= set(chain.from_iterable(s.flatten().tolist() for s in strengths))


@each_spec
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_inputs_have_the_dtype_asked_for(spec: OpSpec, dtype: torch.dtype) -> None:
    for case in spec.cases[:10]:
        inputs = draw(spec, case, dtype)
        assert {inputs.tensors[name].dtype for name in timed_names(spec, inputs)} - {torch.bool} == {dtype}


@each_spec
def test_the_same_seed_draws_the_same_and_another_draws_others(spec: OpSpec) -> None:
    case = next(c for c in spec.cases if c.sizes["T"] >= 63)
    one, same, other = draw(spec, case), draw(spec, case), draw(spec, case, seed=1)
    for name in timed_names(spec, one):
        assert torch.equal(one.tensors[name], same.tensors[name])
    assert any(not torch.equal(one.tensors[name], other.tensors[name]) for name in timed_names(spec, one))


@each_spec
def test_any_batch_and_length_can_be_drawn(spec: OpSpec) -> None:
    for case in spec.cases:
        for batch, tokens in ((0, 3), (3, 0), (5, 4)):
            inputs = draw(spec, resized(case, B=batch, T=tokens))
            assert {inputs.tensors[n].shape[:2] for n in timed_names(spec, inputs)} == {(batch, tokens)}


@each_spec
def test_every_argument_matters(spec: OpSpec) -> None:
    """Or two gradients of zero would agree, because neither was asked for."""
    given: set[str] = set()
    mattering: set[str] = set()
    for case in variety(spec, T=20):
        named = named_inputs(asking(spec, draw(spec, case)))
        found = exact_reference(spec, case)
        given |= set(named)
        mattering |= {name for name in named if found[f"d output / d {name}"].any()}
    assert given == mattering
    assert any(name.split(".")[0] == "state" for name in given)


def test_exceptions_name_a_contract_and_give_a_reason() -> None:
    assert len({(e.name, e.contract, repr(e.options)) for e in EXCEPTIONS}) == len(EXCEPTIONS)
    for exception in EXCEPTIONS:
        assert exception.contract in CONTRACTS
        assert len(exception.reason.split()) > 3


def test_no_folder_has_the_name_of_a_function() -> None:
    """Once a folder is imported it is an attribute of lavagna.ops, in front of a function of the same name."""
    assert not {package.rsplit(".", 1)[1] for package in OPS.values()} & set(OPS)
