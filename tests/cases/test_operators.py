"""Faults that people met in operators of other projects: the right value of every form and implementation of ours.

Each once for each operator that it could touch, forward and backward; tests/ops/test_conformance.py has all options.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import ShapeError
from lavagna.ops.dispatch import Row
from lavagna.ops.linear.api import LinearState
from lavagna.ops.spec import Case, Inputs, OpSpec, load_spec
from lavagna.ops.tree import leaves, named_leaves, select

from ..support.budget import check_all, close, close_all
from ..support.operators import (
    SPECS,
    asking,
    bound,
    changed,
    double,
    draw,
    each,
    exact_alone,
    exact_reference,
    mapped,
    named_inputs,
    packed,
    piece,
    pieces,
    reference_row,
    references,
    resized,
    rows,
    run,
    timed_names,
    variety,
)
from ..support.operators import answer as operator_answer
from ..support.upstreams import check_upstreams


def one(spec: OpSpec, **sizes: int) -> list[Case]:
    """The first case: the conformance suite runs the others."""
    return variety(spec, **sizes)[:1]


def causal(**sizes: int) -> Callable[[OpSpec], list[Case]]:
    """The first case that can be cut."""
    return lambda spec: [case for case in variety(spec, **sizes) if bound(spec, case, "cut anywhere")][:1]


def each_row(op: str) -> pytest.MarkDecorator:
    """Every form and implementation of one operator."""
    spec = load_spec(op)
    return pytest.mark.parametrize("row", [pytest.param(r, id=f"{r.impl}.{r.form}") for r in rows(spec)])


each_op = pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.op) for spec in SPECS])


#: dtypes of half precision
HALF = (torch.bfloat16, torch.float16)


# 1. Strong decay: overflow, or the state lost ----------------------------------------------------------------

#: log decays, and what a memory that every token adds one to holds after each
DECAYS = (0.0, -1e4, -0.4, -87.0, 0.0)
HELD = (1.0, 1.0, 1 + math.exp(-0.4), 1.0, 2.0)
#: slope of the sum of HELD by each decay: what was held and is kept, here and in what follows
SLOPES = (0.0, 0.0, math.exp(-0.4), 0.0, 1.0)


def line(*numbers: float, dims: int = 3) -> Tensor:
    """Numbers along time, every other dimension of size one."""
    return torch.tensor(numbers, dtype=torch.float32).reshape(1, -1, *[1] * (dims - 2))


def strong(op: str) -> tuple[dict[str, Tensor], Tensor, tuple[float, ...], tuple[float, ...]]:
    """A call of one head and one channel; the decays in it; its outputs and the slope of their sum by the decays."""
    ones = line(*[1.0] * 5, dims=4)
    decay = line(*DECAYS, dims=4).requires_grad_()
    if op == "gated_linear":
        return {"q": ones, "k": ones, "v": ones, "log_decay": decay}, decay, HELD, SLOPES
    if op == "generalized_delta":
        nothing = torch.zeros_like(ones)
        given = {"q": ones, "k": ones, "v": ones, "a": ones, "b": nothing, "log_decay": decay}
        return given, decay, HELD, SLOPES
    assert op == "gated_delta"
    # Half of the way to 2 from what is kept: 1, 1, 1 + e^-.4/2, 1, 1.5.
    given = {"q": ones, "k": ones, "v": 2 * ones, "beta": line(*[0.5] * 5), "log_decay": decay}
    half = math.exp(-0.4) / 2
    return given, decay, (1.0, 1.0, 1 + half, 1.0, 1.5), (0.0, 0.0, half, 0.0, 0.5)


@pytest.mark.subset
@each(lambda spec: spec.cases[:1] if spec.op in ("gated_linear", "gated_delta", "generalized_delta") else [])
def test_01_strong_decay_by_hand(spec: OpSpec, row: Row, case: Case) -> None:
    tensors, decay, outputs, slopes = strong(spec.op)
    shapes = [decay] if spec.op == "generalized_delta" else [decay, decay[..., 0]]
    for log_decay in shapes:  # a gate for each channel, and one for the head
        call = Inputs({**tensors, "log_decay": log_decay}, {"scale": 1.0})
        output, state = run(spec, row, call)
        close("output", output.flatten(), torch.tensor(outputs), 1e-6)
        close("state", state.flatten(), torch.tensor(outputs[-1:]), 1e-6)
        (slope,) = torch.autograd.grad(output.sum(), decay)
        close("gradient", slope.flatten(), torch.tensor(slopes), 1e-6)


@pytest.mark.subset
@each_row("selective_scan")
def test_01_strong_steps_by_hand(row: Row) -> None:
    # Δ·A is the decay of each token, and B = 1/Δ makes each write 1.
    steps = line(0.1, 1e4, 0.4, 87.0).requires_grad_()
    A = torch.tensor([[-1.0]], requires_grad=True)
    call = Inputs({"x": line(1, 1, 1, 1), "dt": steps, "A": A, "B": 1 / steps.detach(), "C": line(1, 1, 1, 1)}, {})
    output, _ = run(load_spec("selective_scan"), row, call)
    kept = math.exp(-0.4)
    close("output", output.flatten(), torch.tensor([1.0, 1.0, 1 + kept, 1.0]), 1e-6)
    slopes = torch.autograd.grad(output.sum(), [A, steps])
    close("gradient of A", slopes[0], torch.tensor([[0.4 * kept]]), 1e-6)
    # A longer step writes more by 1/Δ, and keeps less: −e^-.4 of what was held.
    close("gradient of Δ", slopes[1].flatten(), torch.tensor([10 + 0.0, 1e-4, 2.5 - kept, 1 / 87]), 1e-5)


@each(lambda spec: [case for case in spec.cases if spec.op == "diagonal_ssm" and "extreme" in case.name][:2])
def test_01_strong_decay_equals_the_recurrence(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = draw(spec, case)
    check_all(operator_answer(spec, row, inputs), *references(spec, case, inputs))


# 2. Packed neighbours in each other's gradients --------------------------------------------------------------


@pytest.mark.subset
@each(one)
def test_02_gradients_of_packed_sequences(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, bounds = packed(spec, case, (2, 3))
    close_all(operator_answer(spec, row, inputs, cu_seqlens=bounds), exact_alone(spec, case, (2, 3)))


# 4. The normaliser belongs to the gradient -------------------------------------------------------------------

normalized = next(case for case in variety(load_spec("gated_linear"), B=1, T=5) if case.options.get("normalizer"))


@each_row("gated_linear")
def test_04_gradients_through_the_normaliser(row: Row) -> None:
    spec = load_spec("gated_linear")
    asked = asking(spec, double(draw(spec, normalized)))
    named = named_inputs(asked)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(named, tensors, strict=True))
        state = LinearState(given.pop("state.S"), given.pop("state.z"))
        output, final = run(spec, row, changed(asked, **given)._replace(state=state))
        return output, *final

    assert torch.autograd.gradcheck(function, tuple(named.values()), fast_mode=True)


# 5. The normaliser belongs to the state ----------------------------------------------------------------------


@pytest.mark.subset
@each_row("gated_linear")
def test_05_the_normaliser_after_a_split(row: Row) -> None:
    spec = load_spec("gated_linear")
    call = {"q": line(1, dims=4), "k": line(1, dims=4)}
    options = {"normalizer": True, "scale": 1.0}
    _, state = run(spec, row, Inputs({**call, "v": line(1, dims=4)}, options))
    output, state = run(spec, row, Inputs({**call, "v": line(3, dims=4)}, options, state))
    # The mean of 1 and 3; forgetting the first key gives 4, forgetting both 3.
    close("output", output.flatten(), torch.tensor([2.0]), 1e-6)
    close("z", state.z.flatten(), torch.tensor([2.0]), 1e-6)


@each_row("gated_linear")
def test_05_a_normalised_split_equals_the_whole(row: Row) -> None:
    spec = load_spec("gated_linear")
    close_all(pieces(spec, row, double(draw(spec, normalized)), [2, 3]), exact_reference(spec, normalized))


# 6. Upstream gradients that are expanded or not contiguous ---------------------------------------------------


@each(lambda spec: one(spec, B=2, T=7), reference=False)
def test_06_gradients_of_any_strides(spec: OpSpec, row: Row, case: Case) -> None:
    call = asking(spec, double(draw(spec, case)))
    check_upstreams(leaves(run(spec, row, call)), named_inputs(call))


# 7. Head sizes that fill no block ----------------------------------------------------------------------------


def between_nans(tensor: Tensor) -> Tensor:
    """The same numbers, with NaN just before the first and just behind the last."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    room = torch.full((tensor.numel() + 128,), float("nan"), dtype=tensor.dtype)
    room[64 : 64 + tensor.numel()] = tensor.flatten()
    return room[64 : 64 + tensor.numel()].view(tensor.shape)


def odd_heads(spec: OpSpec) -> list[Case]:
    """Cases in which each dimension of a head, or the channels, has such a size in turn."""
    cases = [(case, letter) for case in one(spec, B=1, T=5) for letter in "KVND" if letter in case.sizes]
    return [
        resized(case, **{letter: size})._replace(name=f"{case.name}-{letter}{size}")
        for (case, letter), size in zip(cases, itertools.cycle((48, 60, 100)), strict=False)
        if size % case.sizes.get("G", 1) == 0
    ]


@pytest.mark.subset
@each(odd_heads)
def test_07_nothing_is_read_beyond_a_head(spec: OpSpec, row: Row, case: Case) -> None:
    call = draw(spec, case)
    check_all(operator_answer(spec, row, mapped(call, between_nans)), *references(spec, case, call))


# 8. Optional parts left out ----------------------------------------------------------------------------------

#: arguments that are zero where they are left out
ZERO_IF_ABSENT = ("log_decay", "bias", "D", "dt_bias")


def optional(call: Inputs) -> list[str]:
    """Those of them that a call has."""
    return [name for name in ZERO_IF_ABSENT if call.tensors.get(name) is not None]


def with_optional(spec: OpSpec) -> list[Case]:
    """The case of an operator with the most of them."""
    most = max(variety(spec, B=2, T=7), key=lambda case: len(optional(draw(spec, case))))
    return [most] if optional(draw(spec, most)) else []


@each(with_optional)
def test_08_no_gate_is_a_gate_of_zero(spec: OpSpec, row: Row, case: Case) -> None:
    call = double(draw(spec, case))
    for name in optional(call):
        if inspect.signature(spec.function).parameters[name].default is not None:
            continue  # it cannot be left out
        without = operator_answer(spec, row, changed(call, **{name: None}))
        zero = operator_answer(spec, row, changed(call, **{name: torch.zeros_like(call.tensors[name])}))
        close_all(without, {n: t for n, t in zero.items() if not n.endswith(f"/ d {name}")}, 1e-12)


# 9. A prompt continued with several tokens -------------------------------------------------------------------


@each(causal(B=2, T=10))
def test_09_a_prompt_and_its_continuation(spec: OpSpec, row: Row, case: Case) -> None:
    close_all(pieces(spec, row, double(draw(spec, case)), [5, 9]), exact_reference(spec, case))


# 10. Packing with more than one row --------------------------------------------------------------------------


@each_op
def test_10_packing_with_two_rows_is_refused(spec: OpSpec) -> None:
    call = draw(spec, variety(spec, B=2, T=7)[0])
    with pytest.raises(ShapeError, match="packed sequences need batch 1, got batch 2"):
        spec.function(**call.tensors, cu_seqlens=torch.tensor([0, 3, 7]))


# 11. Steps with and without optional parts -------------------------------------------------------------------


def left_out(spec: OpSpec, call: Inputs) -> list[str]:
    """What a call has and could do without."""
    parameters = inspect.signature(spec.function).parameters
    return [n for n, t in call.tensors.items() if t is not None and parameters[n].default is None]


@each(lambda spec: [max(variety(spec, B=2, T=3), key=lambda case: len(left_out(spec, draw(spec, case))))])
def test_11_steps_with_any_optional_parts(spec: OpSpec, row: Row, case: Case) -> None:
    whole = double(draw(spec, case))
    given = left_out(spec, whole)
    for absent in itertools.chain.from_iterable(itertools.combinations(given, n) for n in range(len(given) + 1)):
        for state in (whole.state, None):
            call = changed(whole, **dict.fromkeys(absent))._replace(state=state)
            close_all(pieces(spec, row, call, [1, 2]), operator_answer(spec, reference_row(spec), call))


# 12. An unknown keyword --------------------------------------------------------------------------------------


@each_op
def test_12_an_unknown_keyword_of_an_operator(spec: OpSpec) -> None:
    with pytest.raises(TypeError, match="use_exp2"):
        spec.function(**draw(spec, variety(spec, B=2, T=3)[0]).tensors, use_exp2=True)


# 14. Right padding, and what is read after it ----------------------------------------------------------------


def test_14_a_masked_cache() -> None:
    spec = load_spec("attention")
    case = next(case for case in spec.cases if case.name == "mask")
    for row in rows(spec):
        call = double(draw(spec, resized(case, B=2, T=6)))
        first, second = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool(), torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()
        mask = torch.cat([first, second], 1)
        split = pieces(spec, row, changed(call, token_mask=mask), [3])
        for b in range(2):
            alone = {n: t[b : b + 1, mask[b]] for n, t in call.tensors.items() if n != "token_mask"}
            state = select(call.state, torch.tensor([b]))
            output, final = run(spec, row, Inputs({**alone}, call.options, state))
            close("output", split["output"][b : b + 1, mask[b]], output, 1e-12)
            close("keys", split["state.keys"][b : b + 1, : final.keys.shape[1]], final.keys, 1e-12)
            assert split["state.seen"][b] == final.seen


# 17. Which group a head reads --------------------------------------------------------------------------------

#: operator -> sizes of 4 heads in 2 groups, what is grouped, and the dimension of the heads in the output
GROUPED: dict[str, tuple[dict[str, int], tuple[str, ...], int]] = {
    "attention": ({"H": 4, "G": 2}, ("k", "v"), 2),
    "gated_linear": ({"H": 2, "HV": 4}, ("q", "k"), 2),
    "gated_delta": ({"H": 2, "HV": 4}, ("q", "k"), 2),
    "selective_scan": ({"D": 4, "G": 2}, ("B", "C"), 2),
}


def grouped(spec: OpSpec) -> list[Case]:
    """The first case of an operator in which everything is grouped."""
    sizes, names, _ = GROUPED.get(spec.op, ({}, (), 0))
    cases = [resized(case, **sizes) for case in variety(spec, B=1, T=5)] if names else []
    return [case for case in cases if all(draw(spec, case).tensors[name].ndim == 4 for name in names)][:1]


@each(grouped)
def test_17_heads_read_their_own_group(spec: OpSpec, row: Row, case: Case) -> None:
    _, names, dim = GROUPED[spec.op]
    call = asking(spec, double(draw(spec, case)))
    output, _ = run(spec, row, call)
    for name in names:
        tensor = call.tensors[name]
        for head in range(4):
            (gradient,) = torch.autograd.grad(output.select(dim, head).sum(), tensor, retain_graph=True)
            meets = gradient.abs().amax((0, 1, 3)) > 0
            assert meets.tolist() == [head // 2 == group for group in range(2)], f"head {head} and {name}"


def test_17_no_grouped_operator_is_forgotten() -> None:
    assert {spec.op for spec in SPECS if {"G", "HV"} & {*spec.cases[0].sizes}} == set(GROUPED)
    assert all(grouped(load_spec(op)) for op in GROUPED)


# 18. Limits of Δ ---------------------------------------------------------------------------------------------


@each_row("selective_scan")
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4]], ids=["at once", "by steps"])
def test_18_steps_beyond_the_limits_are_the_limits(row: Row, cuts: list[int]) -> None:
    spec = load_spec("selective_scan")
    case = next(case for case in variety(spec, T=5) if not case.options["dt_softplus"])
    call = double(draw(spec, case))
    dt = torch.tensor([0.0, 0.2, 0.5, 1.0, 7.0], dtype=torch.float64)[None, :, None].expand_as(call.tensors["dt"])
    limited = changed(call, dt=dt)._replace(options={**call.options, "dt_limit": (0.3, 0.9)})
    got = pieces(spec, row, limited, cuts)
    expected = pieces(spec, row, changed(call, dt=dt.clamp(0.3, 0.9)), cuts)
    for name in ("output", "state", "d output / d x", "d output / d A", "d state / d B"):
        close(name, got[name], expected[name], 1e-12)
    beyond = torch.tensor([True, True, False, True, True])
    assert not got["d output / d dt"][:, beyond].any()
    assert got["d output / d dt"][:, ~beyond].any()


# 19. A state rounded at every step ---------------------------------------------------------------------------


def state_by_steps(spec: OpSpec, row: Row, call: Inputs, tokens: int) -> Any:
    state = call.state
    with torch.no_grad():
        for t in range(tokens):
            _, state = run(spec, row, piece(spec, call, t, t + 1, state))
    return state


@each(lambda spec: one(spec, B=1, T=12) if spec.state_shapes is not None else [])
def test_19_steps_in_half_precision_round_no_state(spec: OpSpec, row: Row, case: Case) -> None:
    for dtype in HALF:
        half = draw(spec, case, dtype)
        wide = mapped(half, lambda t: t.float() if t.is_floating_point() else t)
        got, expected = (dict(named_leaves(state_by_steps(spec, row, call, 12))) for call in (half, wide))
        close_all(got, expected, 1e-6)


# 20. The future, over the boundaries of chunks ---------------------------------------------------------------


@each(lambda spec: one(spec, B=1, T=130), reference=False)
def test_20_a_later_chunk_changes_nothing(spec: OpSpec, row: Row, case: Case) -> None:
    call, other = double(draw(spec, case)), double(draw(spec, case, seed=1))
    output, _ = run(spec, row, call)
    for t in (63, 64, 65, 127, 128):
        token = {n: call.tensors[n].clone() for n in timed_names(spec, call)}
        for name, tensor in token.items():
            tensor[:, t:] = other.tensors[name][:, t:]
        got, _ = run(spec, row, changed(call, **token))
        close(f"before {t}", got[:, :t], output[:, :t], 1e-14)
        assert not torch.equal(got[:, t:], output[:, t:])


# 22. Half precision ------------------------------------------------------------------------------------------


@each(lambda spec: one(spec, B=2, T=7), reference=False)
def test_22_half_precision(spec: OpSpec, row: Row, case: Case) -> None:
    for dtype in HALF:
        call = draw(spec, case, dtype)
        got = operator_answer(spec, row, call, dtype)
        check_all(got, *references(spec, case, call, dtype))
        assert got["output"].dtype == dtype
        for name, tensor in named_inputs(asking(spec, call)).items():
            assert got[f"d output / d {name}"].dtype == tensor.dtype
