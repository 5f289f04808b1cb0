from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna import native
from lavagna.errors import BackendError, InputError, ShapeError
from lavagna.ops import OPS
from lavagna.ops.dispatch import FORMS, Call, Result, Row, Table, automatic, common_dtype, device_of
from lavagna.ops.spec import load_spec


def plain(x: Tensor, weight: Tensor | None, *, power: int, state: Tensor) -> tuple[Tensor, Tensor]:
    seen.update(x=x, weight=weight, state=state, autocast=torch.is_autocast_enabled("cpu"))
    return x**power + state[:, None], state + x.sum(1)


def with_bounds(
    x: Tensor, weight: Tensor | None, *, power: int, state: Tensor, bounds: list[int] | None
) -> tuple[Tensor, Tensor]:
    seen.update(x=x, bounds=bounds)
    return x, state


seen: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


def row(impl: str, form: str, *refusals: str, function: str = "plain", **more: Any) -> Row:
    return Row(impl, form, f"{__name__}:{function}", lambda call: list(refusals), **more)


def call(x: Tensor | None = None, weight: Tensor | None = None, **more: Any) -> Call:
    x = torch.ones(1, 5, 2) if x is None else x
    return Call({"x": x}, {"weight": weight}, {"power": 2}, more.pop("state", torch.zeros(1, 2)), **more)


def table(*rows: Row) -> Table:
    made = Table("op", rows)
    made.__dict__["native_refusals"] = ["no compiler", "no kernel"]
    return made


ALL = (
    row("cpu", "recurrent"),
    row("cpu", "chunk"),
    row("torch", "recurrent"),
    row("torch", "chunk"),
    row("torch", "parallel", "the sequence is too long"),
    row("reference", "recurrent"),
)


# The choice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "form"), [(0, "recurrent"), (1, "recurrent"), (2, "recurrent"), (3, "chunk")])
def test_few_tokens_run_one_by_one_and_many_in_chunks(tokens: int, form: str) -> None:
    chosen = table(*ALL).choose(call(torch.ones(1, tokens, 2)))
    assert (chosen.impl, chosen.form) == ("torch", form)


def test_a_preferred_row_that_can_run_comes_first() -> None:
    made = table(*ALL)
    made.__dict__["native_refusals"] = []
    assert made.choose(call()) == ALL[1]
    assert made.choose(call(), impl="torch") == ALL[3]
    assert made.choose(call(), form="recurrent") == ALL[0]


def test_the_choice_left_to_us_is_never_the_reference() -> None:
    with pytest.raises(BackendError) as caught:
        table(ALL[0], ALL[5]).choose(call())
    assert "reference" not in str(caught.value)
    assert table(*ALL).choose(call(), form="recurrent", impl="reference") == ALL[5]
    assert table(*ALL).choose(call(), impl="reference") == ALL[5]


def test_a_named_row_that_cannot_run_gives_every_reason() -> None:
    with pytest.raises(BackendError) as caught:
        table(*ALL).choose(call(), impl="cpu")
    assert str(caught.value) == (
        "op: form='auto' with impl='cpu' cannot run: form='chunk', impl='cpu': no compiler; no kernel"
        " | form='recurrent', impl='cpu': no compiler; no kernel"
    )
    with pytest.raises(BackendError, match=r"form='parallel', impl='torch': the sequence is too long$"):
        table(*ALL).choose(call(), form="parallel", impl="torch")


def test_a_form_is_refused_with_the_reasons_of_all_its_rows() -> None:
    with pytest.raises(BackendError) as caught:
        table(row("cpu", "chunk", "too odd"), row("torch", "chunk", "too even")).choose(call(), form="chunk")
    for reason in ("no compiler; no kernel; too odd", "too even"):
        assert reason in str(caught.value)


def test_a_pair_that_is_nowhere_is_met_with_those_that_are() -> None:
    with pytest.raises(BackendError) as caught:
        table(ALL[2], ALL[5]).choose(call(), form="chunk", impl="torch")
    assert str(caught.value) == (
        "op: form='chunk' with impl='torch' cannot run: there is no such pair "
        "(impl/form there are: torch/recurrent, reference/recurrent)"
    )


@pytest.mark.parametrize(("kind", "name", "nearest"), [("form", "chunked", "chunk"), ("impl", "torhc", "torch")])
def test_an_unknown_name_is_met_with_the_nearest(kind: str, name: str, nearest: str) -> None:
    with pytest.raises(InputError, match=f"op: unknown {kind} '{name}'; did you mean '{nearest}'"):
        table(*ALL).choose(call(), **{kind: name})


def test_tensors_elsewhere_are_no_matter_for_the_cpu() -> None:
    made = table(*ALL)
    made.__dict__["native_refusals"] = []
    elsewhere = call(torch.ones(1, 5, 2, device="meta"))
    assert made.reasons(ALL[0], elsewhere) == ["its tensors are on meta, not on the CPU"]
    assert made.choose(elsewhere) == ALL[3]


def test_reasons_without_a_call_are_those_of_the_machine() -> None:
    assert table().reasons(ALL[4]) == []
    assert table().reasons(ALL[4], call()) == ["the sequence is too long"]
    assert table().reasons(ALL[0]) == ["no compiler", "no kernel"]


def test_the_table_asks_the_native_part() -> None:
    assert Table("op", ()).native_refusals == native.refusals("op")


# The execution ---------------------------------------------------------------------------------------------


def execute(made: Table, asked: Call, dtype: torch.dtype = torch.float32, **more: Any) -> Result:
    return made.run(asked, **{"form": "auto", "impl": "auto", "dtype": dtype, "return_state": True, **more})


def test_a_row_gets_the_arguments_by_name() -> None:
    asked = call(torch.full((1, 3, 2), 3.0), torch.ones(2), state=torch.full((1, 2), 4.0))
    output, state = execute(table(ALL[3]), asked)
    assert output.tolist() == [[[13.0, 13.0]] * 3]
    assert state.tolist() == [[13.0, 13.0]]
    assert seen["weight"] is asked.fixed["weight"]


def test_the_state_is_kept_back_unless_it_was_asked_for() -> None:
    assert execute(table(ALL[3]), call(), return_state=False).state is None


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_and_narrowed_again(half: torch.dtype) -> None:
    asked = call(torch.ones(1, 5, 2, dtype=half), torch.ones(2, dtype=half))
    output, state = execute(table(ALL[3]), asked, half)
    assert seen["x"].dtype == seen["weight"].dtype == torch.float32
    assert output.dtype == half
    assert state.dtype == torch.float32


def test_one_tensor_of_float64_widens_all() -> None:
    execute(table(ALL[3]), call(weight=torch.ones(2, dtype=torch.float64), state=torch.zeros(1, 2).double()))
    assert seen["x"].dtype == torch.float64


def test_a_state_of_float64_widens_all() -> None:
    execute(table(ALL[3]), call(state=torch.zeros(1, 2, dtype=torch.float64)))
    assert seen["x"].dtype == torch.float64


@pytest.mark.parametrize(
    ("given", "other", "expected"),
    [
        (torch.complex64, torch.bfloat16, torch.complex64),
        (torch.complex64, torch.float64, torch.complex128),
        (torch.complex128, torch.float32, torch.complex128),
    ],
)
def test_complex_is_widened_like_real(given: torch.dtype, other: torch.dtype, expected: torch.dtype) -> None:
    execute(table(ALL[3]), call(torch.ones(1, 5, 2, dtype=other), torch.ones(2, dtype=given)))
    assert seen["weight"].dtype == expected
    assert seen["x"].dtype == (torch.float64 if expected == torch.complex128 else torch.float32)


def test_what_is_neither_stays() -> None:
    execute(table(ALL[3]), call(weight=torch.ones(2, dtype=torch.bool)))
    assert seen["weight"].dtype == torch.bool


def test_a_row_that_takes_half_precision_gets_it() -> None:
    execute(table(row("torch", "chunk", widens=False)), call(torch.ones(1, 5, 2, dtype=torch.bfloat16)))
    assert seen["x"].dtype == torch.bfloat16


def test_autocast_stays_outside() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        execute(table(ALL[3]), call())
        assert torch.is_autocast_enabled("cpu")
    assert not seen["autocast"]


def test_a_row_that_packs_gets_the_boundaries() -> None:
    execute(table(row("torch", "chunk", function="with_bounds", packs=True)), call(bounds=[0, 2, 5]))
    assert seen["bounds"] == [0, 2, 5]
    assert seen["x"].shape == (1, 5, 2)


def test_a_row_that_does_not_pack_gets_padded_groups_with_fills() -> None:
    asked = call(torch.ones(1, 5, 2), state=torch.zeros(2, 2), bounds=[0, 2, 5], fills={"x": 7.0})
    output, state = execute(table(ALL[3]), asked)
    assert seen["x"][..., 0].tolist() == [[1, 1, 7], [1, 1, 1]]
    assert output.shape == (1, 5, 2)
    assert state.shape == (2, 2)


def test_the_reference_gets_each_packed_sequence_alone() -> None:
    asked = call(torch.ones(1, 5, 2), state=torch.zeros(2, 2), bounds=[0, 2, 5], fills={"x": 7.0})
    _, state = execute(table(ALL[5]), asked, impl="reference")
    assert seen["x"].shape == (1, 3, 2)
    assert state.tolist() == [[2, 2], [3, 3]]


# Dtypes and devices ----------------------------------------------------------------------------------------


def test_a_state_is_float32_or_float64_when_an_input_is() -> None:
    half, single, double = (torch.ones(1, dtype=d) for d in (torch.bfloat16, torch.float32, torch.float64))
    assert common_dtype("op", x=half, y=None) == torch.float32
    assert common_dtype("op", x=half, y=single) == torch.float32
    assert common_dtype("op", x=half, y=double) == torch.float64
    assert common_dtype("op", ("A",), A=single.to(torch.complex64)) == torch.float32
    assert common_dtype("op", ("A",), x=single, A=double.to(torch.complex128)) == torch.float64


def test_what_is_no_floating_tensor_is_named() -> None:
    with pytest.raises(ShapeError, match=r"^op: y must have a real floating dtype, got torch\.int64$"):
        common_dtype("op", x=torch.ones(1), y=torch.ones(1, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"^op: A must have a floating or complex dtype, got torch\.int64$"):
        common_dtype("op", ("A",), A=torch.ones(1, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"^op: y must have a real floating dtype, got torch\.complex64$"):
        common_dtype("op", ("A",), y=torch.ones(1, dtype=torch.complex64))
    with pytest.raises(ShapeError, match=r"^op: y must be a tensor, got list$"):
        common_dtype("op", x=torch.ones(1), y=[1.0])


def test_one_device_for_all() -> None:
    assert device_of("op", x=torch.ones(1), y=None) == torch.device("cpu")
    with pytest.raises(ShapeError, match=r"^op: expected all tensors on one device, got x on cpu, y on meta$"):
        common_dtype("op", x=torch.ones(1), y=torch.ones(1, device="meta"))


# The tables of the operators -------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_every_operator_has_a_spec_and_a_literal_recurrence(op: str) -> None:
    spec = load_spec(op)
    assert (spec.op, spec.table.op, spec.function.__name__) == (op, op, op)
    assert [r.form for r in spec.table.rows if r.impl == "reference"] == ["recurrent"]
    pairs = [(r.impl, r.form) for r in spec.table.rows]
    assert len(set(pairs)) == len(pairs)
    assert {r.form for r in spec.table.rows} <= set(FORMS)
    assert {r.impl for r in spec.table.rows} >= {"torch", "reference"}
    for form in FORMS:  # native code is asked first
        order = [r.impl for r in spec.table.rows if r.form == form]
        assert "cpu" not in order[1:]


@pytest.mark.parametrize("op", OPS)
def test_every_row_that_can_run_has_its_function(op: str) -> None:
    table_of = load_spec(op).table
    for each in table_of.rows:
        if not table_of.reasons(each):
            assert callable(each.function)


def test_what_is_left_open_can_be_decided_for_a_whole_model() -> None:
    able = table(row("torch", "chunk"), row("torch", "recurrent"), row("reference", "recurrent"))
    assert able.choose(call()).impl == "torch"
    with automatic("reference"):
        assert able.choose(call()).impl == "reference"
        assert able.choose(call(), impl="torch").impl == "torch"
        with automatic("cpu"), pytest.raises(BackendError, match="no such pair"):
            able.choose(call())
        assert able.choose(call()).impl == "reference"
    assert able.choose(call()).impl == "torch"
    with pytest.raises(InputError, match="unknown impl 'cuda'"), automatic("cuda"):
        pass
