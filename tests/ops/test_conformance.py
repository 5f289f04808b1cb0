"""Contracts 1 to 6, for every operator, in every form and implementation that runs here.

Contract 7 is in test_refusals.py, and what concerns memory layout in test_layout.py. Operators come from
OPS and cases from their specs; nothing here names an operator.
"""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from lavagna.ops.dispatch import Row
from lavagna.ops.spec import Case, Inputs, OpSpec
from lavagna.ops.tree import leaves, map_tensors, named_leaves, select

from ..support.budget import check_all, close, close_all
from ..support.operators import (
    Cases,
    answer,
    asking,
    batch_rows,
    bound,
    changed,
    double,
    draw,
    each,
    exact_alone,
    exact_reference,
    few,
    gradients,
    mapped,
    named_inputs,
    named_values,
    packed,
    pieces,
    references,
    resized,
    run,
    timed_names,
    upstream,
    variety,
)

LENGTHS = (0, 1, 70, 0, 3, 2, 66, 0)  # of packed sequences: empty, one token, more than a chunk


def binding(contract: str, **sizes: int) -> Cases:
    """Few cases, those that a contract binds."""
    return lambda spec: [case for case in few(spec, **sizes) if bound(spec, case, contract)]


# 1. One answer ---------------------------------------------------------------------------------------------


def check_float32(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = draw(spec, case)
    check_all(answer(spec, row, inputs), *references(spec, case, inputs))


def check_float64(spec: OpSpec, row: Row, case: Case) -> None:
    close_all(answer(spec, row, double(draw(spec, case))), exact_reference(spec, case))


@each(lambda spec: spec.cases, reference=False, native_subset=True)
def test_one_answer(spec: OpSpec, row: Row, case: Case) -> None:
    check_float32(spec, row, case)
    check_float64(spec, row, case)


@each(lambda spec: variety(spec, T=20), reference=False, native_subset=True)
def test_one_answer_in_half_precision(spec: OpSpec, row: Row, case: Case) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        inputs = draw(spec, case, dtype)
        got = answer(spec, row, inputs, dtype)
        assert got["output"].dtype == dtype
        if spec.state_shapes is not None:  # a recurrence rounds at every step
            state = [tensor for name, tensor in got.items() if name.split(".")[0] == "state"]
            assert {t.dtype for t in state} <= {torch.float32, torch.complex64}
        check_all(got, *references(spec, case, inputs, dtype))


@each(lambda spec: few(spec, T=20))
def test_half_precision_data_meets_float32_parameters(spec: OpSpec, row: Row, case: Case) -> None:
    """What a model in autocast hands over: half-precision activations, float32 weights and states."""
    half = draw(spec, case, torch.bfloat16)
    timed = {name: half.tensors[name] for name in timed_names(spec, half)}
    inputs = changed(draw(spec, case), **timed)._replace(state=half.state)
    output, state = run(spec, row, inputs)
    assert output.dtype == torch.bfloat16
    assert {t.dtype for t in leaves(state)} == {t.dtype for t in leaves(run(spec, row, half).state)}
    wide, _ = run(spec, row, mapped(inputs, lambda t: t.float() if t.is_floating_point() else t))
    # Rounded once where the row works in float32, several times where it works in half precision.
    close("output", output.float(), wide, torch.finfo(torch.bfloat16).eps * (1 if row.widens else 8))


@each(lambda spec: few(spec, B=1, T=5))
def test_gradients_are_derivatives(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = asking(spec, double(draw(spec, case)))
    named = named_inputs(inputs)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(named, tensors, strict=True))
        state_parts = iter([t for name, t in given.items() if name.split(".")[0] == "state"])
        state = map_tensors(lambda t: next(state_parts) if t.requires_grad else t, inputs.state)
        plain = {name: t for name, t in given.items() if name in inputs.tensors}
        output, final = run(spec, row, changed(inputs, **plain)._replace(state=state))
        return tuple(t for t in (output, *leaves(final)) if t.requires_grad)

    assert torch.autograd.gradcheck(function, tuple(named.values()), fast_mode=True)


@each(lambda spec: few(spec, B=2, T=20))
def test_a_gradient_does_not_depend_on_which_others_are_asked_for(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = double(draw(spec, case))
    together = answer(spec, row, inputs)
    for name in named_inputs(asking(spec, inputs)):
        alone = asking(spec, inputs, name)
        found = gradients(run(spec, row, alone), named_inputs(alone))
        close_all(found, {gradient: together[gradient] for gradient in found}, 1e-12)
        assert len(found) == 2


@each(binding("cut anywhere", T=7))
def test_no_state_is_a_state_of_zeros(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = double(draw(spec, case))
    zeros = map_tensors(torch.zeros_like, run(spec, row, inputs).state)
    without, given = run(spec, row, inputs._replace(state=None)), run(spec, row, inputs._replace(state=zeros))
    close_all(named_values(without), named_values(given), 1e-14)


@each(lambda spec: few(spec, T=7)[:1])
def test_the_state_is_returned_only_when_asked_for(spec: OpSpec, row: Row, case: Case) -> None:
    result = run(spec, row, draw(spec, case), return_state=False)
    assert result._fields == ("output", "state")
    assert result.state is None
    assert torch.equal(result.output, run(spec, row, draw(spec, case)).output)


@each(lambda spec: few(spec, T=7))
def test_without_gradients_the_answer_is_the_same(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = draw(spec, case)
    expected = named_values(run(spec, row, asking(spec, inputs)))
    with torch.no_grad():
        close_all(named_values(run(spec, row, inputs)), expected, 1e-6)
    with torch.inference_mode():
        close_all(named_values(run(spec, row, inputs)), expected, 1e-6)


@each(lambda spec: few(spec, T=20))
def test_autocast_changes_nothing(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = asking(spec, draw(spec, case))
    plain = run(spec, row, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = run(spec, row, inputs)
    expected = named_values(plain) | gradients(plain, named_inputs(inputs))
    got = named_values(cast) | gradients(cast, named_inputs(inputs))
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


# 2. Cut anywhere -------------------------------------------------------------------------------------------


@each(binding("cut anywhere", B=2, T=70), native_subset=True)
@hypothesis.settings(max_examples=3)
@hypothesis.example(cuts=[0, 0, 1, 64, 70])
@hypothesis.given(cuts=st.lists(st.integers(0, 70), max_size=5).map(sorted))
def test_pieces_of_any_length_equal_the_whole(spec: OpSpec, row: Row, case: Case, cuts: list[int]) -> None:
    close_all(pieces(spec, row, double(draw(spec, case)), cuts), exact_reference(spec, case))


@pytest.mark.subset
@each(lambda spec: [case for case in variety(spec, B=2, T=9) if bound(spec, case, "cut anywhere")])
def test_one_token_at_a_time_equals_the_whole(spec: OpSpec, row: Row, case: Case) -> None:
    close_all(pieces(spec, row, double(draw(spec, case)), range(1, 9)), exact_reference(spec, case))


# 3. Neighbours don't matter --------------------------------------------------------------------------------


@each(few, native_subset=True)
def test_packed_sequences_equal_each_alone(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, bounds = packed(spec, case, LENGTHS)
    close_all(answer(spec, row, inputs, cu_seqlens=bounds), exact_alone(spec, case, LENGTHS))


@each(lambda spec: variety(spec)[:1])
def test_nothing_can_be_packed(spec: OpSpec, row: Row, case: Case) -> None:
    for lengths in ((), (0, 0)):
        inputs, bounds = packed(spec, case, lengths)
        output, state = run(spec, row, inputs, cu_seqlens=bounds)
        assert output.shape[:2] == (1, 0)
        assert {t.shape[0] for t in leaves(state)} == {len(lengths)}


@each(lambda spec: variety(spec)[:1])
def test_boundaries_may_be_int32(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, bounds = packed(spec, case, (3, 0, 2))
    close_all(
        named_values(run(spec, row, inputs, cu_seqlens=bounds.int())),
        named_values(run(spec, row, inputs, cu_seqlens=bounds)),
        0,
    )


@each(lambda spec: few(spec, B=3, T=20))
def test_rows_of_a_batch_do_not_meet(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = asking(spec, double(draw(spec, case)))
    whole = run(spec, row, inputs)
    shuffled = run(spec, row, batch_rows(spec, inputs, [2, 0, 1]))
    for (name, got), expected in zip(named_leaves(shuffled), leaves(whole), strict=True):
        close(f"{name} of a permuted batch", got, expected[[2, 0, 1]], 1e-14)
    for b in range(3):
        alone = run(spec, row, batch_rows(spec, inputs, [b]))
        for (name, got), expected in zip(named_leaves(alone), leaves(select(whole, torch.tensor([b]))), strict=True):
            close(f"{name} of row {b} alone", got, expected, 1e-12)

    timed = {name: inputs.tensors[name] for name in timed_names(spec, inputs)}
    timed = {name: t for name, t in timed.items() if t.requires_grad}
    results = [t[:1] for t in leaves(whole) if t.requires_grad]
    found = torch.autograd.grad(
        results, list(timed.values()), [upstream(t.shape, t.dtype, torch.float32) for t in results]
    )
    for name, gradient in zip(timed, found, strict=True):
        assert not gradient[1:].any(), f"row 0 has a gradient for {name} of other rows"


# 4. The past cannot see the future -------------------------------------------------------------------------


@each(binding("the past cannot see the future", B=2, T=130))
def test_the_past_has_no_gradient_from_the_future(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = asking(spec, double(draw(spec, case)))
    output = run(spec, row, inputs).output
    timed = {name: inputs.tensors[name] for name in timed_names(spec, inputs)}
    timed = {name: t for name, t in timed.items() if t.requires_grad}
    for t in (1, 16, 63, 64, 65, 128):
        past = output[:, :t]
        found = torch.autograd.grad(
            past, list(timed.values()), upstream(past.shape, past.dtype, torch.float32), retain_graph=True
        )
        for name, gradient in zip(timed, found, strict=True):
            leak = gradient[:, t:].abs().max().item()
            assert leak <= 1e-14 * gradient.abs().max().item(), f"tokens before {t} depend on {name} at or after it"


@each(binding("the past cannot see the future", B=2, T=130))
def test_changing_a_token_changes_nothing_before_it(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, others = double(draw(spec, case)), double(draw(spec, case, seed=1))
    output = run(spec, row, inputs).output
    for t in (1, 31, 64, 127):
        mixed = {
            name: torch.cat([inputs.tensors[name][:, :t], others.tensors[name][:, t:]], 1)
            for name in timed_names(spec, inputs)
        }
        got = run(spec, row, changed(inputs, **mixed)).output
        close(f"output before {t}", got[:, :t], output[:, :t], 1e-14)
        assert not torch.equal(got[:, t:], output[:, t:])


# 5. Finite -------------------------------------------------------------------------------------------------


def zeroed(spec: OpSpec, inputs: Inputs) -> dict[str, Inputs]:
    """The call with each of its tensors over time set to zero, and with all of them."""
    zeros = {
        name: torch.zeros_like(inputs.tensors[name])
        for name in timed_names(spec, inputs)
        if inputs.tensors[name].is_floating_point()
    }
    found = {f"{name} of zero": changed(inputs, **{name: zero}) for name, zero in zeros.items()}
    nothing = map_tensors(torch.zeros_like, inputs.state)
    return found | {"all of zero": changed(inputs, **zeros)._replace(state=nothing)}


@each(lambda spec: few(spec, T=20), reference=False)
def test_zeros_are_inputs_like_any_other(spec: OpSpec, row: Row, case: Case) -> None:
    for what, inputs in zeroed(spec, draw(spec, case)).items():
        check_all(answer(spec, row, inputs), *references(spec, case, inputs, what=what))


@each(lambda spec: variety(spec)[:1])
def test_empty_inputs_give_empty_outputs(spec: OpSpec, row: Row, case: Case) -> None:
    for B, T in ((0, 5), (2, 0), (0, 0)):
        inputs = draw(spec, resized(case, B=B, T=T))
        output, state = run(spec, row, inputs)
        assert output.shape[:2] == (B, T)
        if T == 0:
            close_all(dict(named_leaves(state)), dict(named_leaves(inputs.state)), 0)


# 6. Constant memory ----------------------------------------------------------------------------------------


@each(binding("cut anywhere"))
def test_the_state_does_not_grow(spec: OpSpec, row: Row, case: Case) -> None:
    shapes = []
    for tokens in (0, 1, 100, 200):
        state = run(spec, row, draw(spec, resized(case, T=tokens))).state
        shapes.append(tuple(tuple(t.shape) for t in leaves(state)))
    if not bound(spec, case, "constant memory"):
        assert shapes[2] != shapes[3], "the table of exceptions is out of date"
    elif spec.state_shapes is None:
        assert shapes[2] == shapes[3]
    else:
        assert set(shapes) == {spec.state_shapes(case)}


@each(binding("constant memory"))
def test_the_state_keeps_no_other_memory_alive(spec: OpSpec, row: Row, case: Case) -> None:
    """A final state that is a view of a longer tensor keeps all of it in memory."""
    with torch.no_grad():
        short, long = (run(spec, row, draw(spec, resized(case, T=tokens))).state for tokens in (100, 200))
    kept = [[t.untyped_storage().nbytes() for t in leaves(state)] for state in (short, long)]
    assert kept[0] == kept[1]
