"""Contract 7, clear refusal, for every operator: the message names what was expected and what came."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import BackendError, InputError, ShapeError
from lavagna.ops.dispatch import FORMS, IMPLS, Result
from lavagna.ops.spec import Case, Inputs, OpSpec
from lavagna.ops.tree import leaves, map_tensors

from ..support.operators import SPECS, accepts, changed, draw, few, packed, timed_names, variety

# With a state every dimension of every argument is shared with another one.
each_case = pytest.mark.parametrize(
    ("spec", "case"),
    [
        pytest.param(spec, case, id=f"{spec.op}-{case.name}")
        for spec in SPECS
        for case in few(spec, B=3, T=7)
        if draw(spec, case).state is not None
    ],
)
each_operator = pytest.mark.parametrize(
    ("spec", "case"), [pytest.param(spec, variety(spec, B=3, T=7)[0], id=spec.op) for spec in SPECS]
)


def call(spec: OpSpec, inputs: Inputs, **more: Any) -> Result:
    """Call the public function as a user would."""
    return spec.function(**{**inputs.tensors, **inputs.options, "state": inputs.state, **more})


def refuses(error: type[Exception], spec: OpSpec, inputs: Inputs, *words: str, **more: Any) -> str:
    """Demand an error that names the operator and these words; return its message."""
    with pytest.raises(error) as caught:
        call(spec, inputs, **more)
    message = str(caught.value)
    assert message.startswith(f"{spec.op}: "), message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"
    return message


def given(inputs: Inputs) -> dict[str, Tensor]:
    """The tensor arguments of a call, without those that are left out."""
    return {name: t for name, t in inputs.tensors.items() if t is not None}


def grown(tensor: Tensor, dim: int) -> Tensor:
    """The tensor with one more slice along a dimension."""
    return torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)


# Shapes, dtypes, devices -----------------------------------------------------------------------------------


@each_case
def test_a_dimension_off_by_one(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    timed = timed_names(spec, inputs)
    for name, tensor in given(inputs).items():
        for dim in range(tensor.ndim):
            if timed == [name] and dim == 1:
                continue  # the only tensor over time may be of any length
            wrong = changed(inputs, **{name: grown(tensor, dim)})
            message = refuses(ShapeError, spec, wrong, "got")
            named = [n for n in (*given(wrong), "state") if re.search(rf"\b{n}\b", message)]
            assert named, f"{name} with dimension {dim} off by one: {message}"
            assert re.search(r"got .*\d", message), f"no size that came: {message}"


@each_case
def test_a_dimension_too_many_or_few(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for name, tensor in given(inputs).items():
        for wrong in (tensor[None], tensor.flatten(), tensor.sum()):
            if wrong.ndim != tensor.ndim:
                refuses(ShapeError, spec, changed(inputs, **{name: wrong}), name, "got")


@each_case
def test_a_state_of_another_shape(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for position, leaf in enumerate(leaves(inputs.state)):
        for dim in range(leaf.ndim):
            places = iter(range(len(leaves(inputs.state))))
            state = map_tensors(
                lambda t, p=places, d=dim, at=position: grown(t, d) if next(p) == at else t, inputs.state
            )
            refuses(InputError, spec, inputs._replace(state=state), "state", "got")


@each_case
def test_a_state_of_another_batch(spec: OpSpec, case: Case) -> None:
    """A state of batch 1 would broadcast, silently."""
    inputs = draw(spec, case)
    state = map_tensors(lambda t: t[:1], inputs.state)
    refuses(InputError, spec, inputs._replace(state=state), "state", "got")


@each_case
def test_one_state_for_several_packed_sequences(spec: OpSpec, case: Case) -> None:
    inputs, bounds = packed(spec, case, (3, 4))
    state = map_tensors(lambda t: t[:1], inputs.state)
    refuses(InputError, spec, inputs._replace(state=state), "state", "got", cu_seqlens=bounds)


@each_case
def test_a_state_of_another_kind(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for state in (1.0, (inputs.state, inputs.state, inputs.state)):
        refuses(InputError, spec, inputs._replace(state=state), "state", "got")


@each_case
def test_integers(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for name, tensor in given(inputs).items():
        wrong = tensor.float() if tensor.dtype == torch.bool else torch.zeros(tensor.shape, dtype=torch.int64)
        message = refuses(ShapeError, spec, changed(inputs, **{name: wrong}), name, "dtype", "got")
        assert str(wrong.dtype) in message


@each_case
def test_complex_numbers_over_time(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for name in timed_names(spec, inputs):
        if inputs.tensors[name].is_floating_point():
            wrong = inputs.tensors[name].to(torch.complex64)
            refuses(ShapeError, spec, changed(inputs, **{name: wrong}), name, "got torch.complex64")


@each_case
def test_tensors_on_different_devices(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    if len(given(inputs)) > 1:
        for name, tensor in given(inputs).items():
            refuses(ShapeError, spec, changed(inputs, **{name: tensor.to("meta")}), name, "meta", "cpu")


@each_case
def test_what_is_no_tensor(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    for name, tensor in given(inputs).items():
        refuses(ShapeError, spec, changed(inputs, **{name: tensor.tolist()}), name, "got list")


# Packing ---------------------------------------------------------------------------------------------------


@each_operator
def test_packing_with_a_batch(spec: OpSpec, case: Case) -> None:
    refuses(ShapeError, spec, draw(spec, case), "batch 1", "got batch 3", cu_seqlens=torch.tensor([0, 7]))


@each_operator
@pytest.mark.parametrize("bounds", [[0, 3], [1, 7], [0, 8], [0, 5, 3, 7], [7, 0]], ids=str)
def test_boundaries_that_are_none(spec: OpSpec, case: Case, bounds: list[int]) -> None:
    inputs, _ = packed(spec, case, (7,))
    refuses(InputError, spec, inputs, "cu_seqlens", "T=7", str(bounds), cu_seqlens=torch.tensor(bounds))


@each_operator
def test_boundaries_of_another_shape_or_dtype(spec: OpSpec, case: Case) -> None:
    inputs, _ = packed(spec, case, (7,))
    for wrong in (torch.tensor([[0, 7]]), torch.tensor([0.0, 7.0]), torch.tensor([], dtype=torch.int64)):
        refuses(ShapeError, spec, inputs, "cu_seqlens", str(list(wrong.shape)), cu_seqlens=wrong)


# Names -----------------------------------------------------------------------------------------------------


@each_operator
def test_an_unknown_keyword(spec: OpSpec, case: Case) -> None:
    with pytest.raises(TypeError, match="retrun_state"):
        call(spec, draw(spec, case), retrun_state=True)


@each_operator
def test_an_unknown_form_or_implementation_names_the_nearest(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    refuses(InputError, spec, inputs, "impl 'tosch'", "'torch'", *IMPLS, impl="tosch")
    if accepts(spec, "form"):
        refuses(InputError, spec, inputs, "form 'chunks'", "'chunk'", *FORMS, form="chunks")


@each_operator
def test_a_chunk_or_window_must_hold_a_token(spec: OpSpec, case: Case) -> None:
    """Nor is a float, a text or a truth value a number of tokens."""
    for option in ("chunk_size", "window"):
        if accepts(spec, option):
            for size in (0, -1, 2.0, "4", True, [4]):
                refuses(InputError, spec, draw(spec, case), f"{option} must be", f"got {size!r}", **{option: size})


@each_operator
def test_every_pair_of_form_and_implementation_runs_or_says_why(spec: OpSpec, case: Case) -> None:
    inputs = draw(spec, case)
    there = {(row.form, row.impl): row for row in spec.table.rows}
    for form in FORMS if accepts(spec, "form") else ("auto",):
        for impl in IMPLS:
            choice = {"impl": impl} | ({"form": form} if form != "auto" else {})
            row = there.get((form, impl))
            if row is not None and not spec.table.reasons(row):
                assert call(spec, inputs, **choice).output.shape[:2] == (3, 7)
            elif form != "auto":
                reasons = ["no such pair"] if row is None else spec.table.reasons(row)
                refuses(BackendError, spec, inputs, f"form={form!r}", f"impl={impl!r}", *reasons, **choice)


@each_operator
def test_a_native_kernel_that_cannot_run_gives_every_reason(
    spec: OpSpec, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = ["the moon is full", "the cat sleeps"]
    monkeypatch.setitem(spec.table.__dict__, "native_refusals", reasons)
    refuses(BackendError, spec, draw(spec, case), *reasons, impl="cpu")
    call(spec, draw(spec, case))  # the choice left to us is another one


@each_operator
def test_all_that_runs_over_time_is_in_the_spec(spec: OpSpec, case: Case) -> None:
    """The suite would not cut what a spec forgets to name."""
    inputs = draw(spec, case)
    timed = timed_names(spec, inputs)
    longer = draw(spec, case._replace(sizes={**case.sizes, "T": 8}))
    assert timed == [name for name, tensor in given(inputs).items() if tensor.shape != longer.tensors[name].shape]
