"""Calls like an earlier one skip validation and choice, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError
from lavagna.ops import gated_delta, short_conv
from lavagna.ops.dispatch import Call, Result, Row, Table, automatic
from lavagna.ops.repeated import Plans, look
from lavagna.ops.spec import Case, Inputs, OpSpec

from ..support.operators import SPECS, draw, few, mapped, named_values, variety

REMEMBERING = [spec for spec in SPECS if hasattr(spec.function, "__wrapped__")]

each_case = pytest.mark.parametrize(
    ("spec", "case"),
    [pytest.param(spec, case, id=f"{spec.op}-{case.name}") for spec in REMEMBERING for case in few(spec, B=2, T=1)],
)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def call(spec: OpSpec, inputs: Inputs, **more: Any) -> Result:
    return spec.function(**inputs.tensors, **inputs.options, state=inputs.state, return_state=True, **more)


def without_memory(spec: OpSpec, inputs: Inputs, **more: Any) -> Result:
    return spec.function.__wrapped__(**inputs.tensors, **inputs.options, state=inputs.state, return_state=True, **more)


def same(one: Result, other: Result) -> None:
    one_named, other_named = named_values(one), named_values(other)
    assert one_named.keys() == other_named.keys()
    for name, value in one_named.items():
        torch.testing.assert_close(value, other_named[name], rtol=0, atol=0, equal_nan=False)


def test_every_recurrence_remembers() -> None:
    assert {spec.op for spec in SPECS} - {spec.op for spec in REMEMBERING} == {"attention"}  # its state has a history


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@each_case
def test_a_second_call_is_answered_like_the_first(spec: OpSpec, case: Case, dtype: torch.dtype) -> None:
    for seed in range(3):
        inputs = draw(spec, case, dtype, seed)
        same(call(spec, inputs), without_memory(spec, inputs))


@each_case
def test_strides_are_no_matter(spec: OpSpec, case: Case) -> None:
    call(spec, draw(spec, case))
    spread = mapped(draw(spec, case, seed=1), lambda t: torch.stack([t, torch.full_like(t, torch.nan)], -1)[..., 0])
    same(call(spec, spread), without_memory(spec, spread))


@pytest.mark.parametrize("spec", REMEMBERING, ids=[spec.op for spec in REMEMBERING])
def test_a_step_is_looked_at_once(spec: OpSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(c for c in variety(spec, B=1, T=1) if isinstance(draw(spec, c).state, Tensor))
    call(spec, draw(spec, case))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError("looked at again")

    monkeypatch.setattr(Table, "run", refuse)
    call(spec, draw(spec, case, seed=1))


# What is not remembered ------------------------------------------------------------------------------------


def step(**changes: Any) -> Result:
    arguments = {"x": torch.ones(1, 1, 3), "weight": torch.ones(3, 4), "state": torch.ones(1, 3, 3)}
    return short_conv(**{**arguments, **changes}, return_state=True)


def test_what_differs_in_anything_is_looked_at() -> None:
    step()
    with pytest.raises(ShapeError, match=r"^short_conv: weight must have shape \[D=3, W\], got \[4, 4\]$"):
        step(weight=torch.ones(4, 4))
    with pytest.raises(ShapeError, match=r"^short_conv: x must have a real floating dtype, got torch\.int64$"):
        step(x=torch.ones(1, 1, 3, dtype=torch.int64))
    with pytest.raises(ShapeError, match=r"^short_conv: expected all tensors on one device, got x on cpu, weight on"):
        step(weight=torch.ones(3, 4, device="meta"))
    with pytest.raises(InputError, match=r"^short_conv: activation must be None or 'silu', got 'swish'$"):
        step(activation="swish")
    with pytest.raises(TypeError, match="activated"):
        step(activated="silu")
    with pytest.raises(ShapeError, match=r"^short_conv: x must be a tensor of shape \[B, T, D\], got int$"):
        step(x=1)


def test_numbers_that_are_equal_are_not_the_same() -> None:
    q, v = torch.ones(1, 1, 1, 2), torch.ones(1, 1, 1, 3)
    arguments = (q, q + 1, v, torch.ones(1, 1, 1))
    state = torch.ones(1, 1, 2, 3)
    gated_delta(*arguments, state=state, chunk_size=1)
    with pytest.raises(InputError, match=r"^gated_delta: chunk_size must be a power of two, got True$"):
        gated_delta(*arguments, state=state, chunk_size=True)
    with pytest.raises(InputError, match=r"^gated_delta: chunk_size must be a power of two, got 1\.0$"):
        gated_delta(*arguments, state=state, chunk_size=1.0)


def test_one_tensor_in_two_places() -> None:
    """What is made of q = k must not be made of q and k."""
    v, beta, state = torch.ones(1, 1, 1, 3), torch.ones(1, 1, 1), torch.zeros(1, 1, 2, 3)
    q, k = torch.tensor([[[[1.0, 0.0]]]]), torch.tensor([[[[0.0, 1.0]]]])
    for _ in range(2):
        assert gated_delta(q, q, v, beta, scale=1.0, state=state).output.flatten().tolist() == [1, 1, 1]
        assert gated_delta(q, k, v, beta, scale=1.0, state=state).output.flatten().tolist() == [0, 0, 0]


def test_boundaries_are_values() -> None:
    x, weight = torch.ones(1, 4, 1), torch.ones(1, 2)
    for bounds, expected in (([0, 1, 4], [1, 1, 2, 2]), ([0, 3, 4], [1, 2, 2, 1])):
        output = short_conv(x, weight, state=torch.zeros(2, 1, 1), cu_seqlens=torch.tensor(bounds)).output
        assert output.flatten().tolist() == expected


def test_the_state_is_kept_back_unless_it_was_asked_for() -> None:
    arguments = (torch.ones(1, 1, 3), torch.ones(3, 4))
    for _ in range(2):
        assert short_conv(*arguments, state=torch.ones(1, 3, 3)).state is None
        assert short_conv(*arguments, state=torch.ones(1, 3, 3), return_state=True).state is not None


def test_what_an_open_impl_means() -> None:
    ran.clear()
    table = Table("op", (Row("cpu", "parallel", f"{__name__}:native"), Row("torch", "parallel", f"{__name__}:torchs")))
    table.__dict__["native_refusals"] = []

    @table.remembers
    def operator(x: Tensor, *, state: Tensor) -> Result:
        call = Call({"x": x}, {}, {"seen": None}, state)
        return table.run(call, form="auto", impl="auto", dtype=x.dtype, return_state=True)

    for impl in ("auto", "torch", "auto", "torch"):
        with automatic(impl):
            operator(torch.ones(1, 1, 1), state=torch.ones(1, 1))
    assert ran == ["native", "torchs", "native", "torchs"]


ran: list[str] = []


def native(x: Tensor, *, state: Tensor, seen: None) -> tuple[Tensor, Tensor]:
    ran.append("native")
    return x, state


def torchs(x: Tensor, *, state: Tensor, seen: None) -> tuple[Tensor, Tensor]:
    ran.append("torchs")
    return x, state


def test_autocast_and_autograd_are_noticed() -> None:
    step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(step(), step(impl="torch"))
    with torch.enable_grad():
        weight = torch.ones(3, 4, requires_grad=True)
        step(weight=weight).output.sum().backward()
        assert weight.grad is not None


def test_the_facts_of_a_call() -> None:
    def facts(*values: Any) -> Any:
        kinds = tuple(map(type, values))
        known = Plans(kinds)
        return (kinds, known.plain(values), *map(look, known.tensors(values))) if known.usable else None

    x, y = torch.ones(2), torch.ones(2)
    known = facts(x, y, 1, None)
    assert known == facts(y, x + 1, 1, None)
    others = [
        (x, y, 2, None),
        (x, y, True, None),
        (x, y, None, 1),
        (x, torch.ones(3), 1, None),
        (x, y.double(), 1, None),
        (x, y.to("meta"), 1, None),
    ]
    assert all(known != facts(*values) for values in others)
    assert facts(x, y, [1]) is None
    assert facts(x, 1) is None
