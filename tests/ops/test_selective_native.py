"""What the native kernels of selective_scan promise beyond the contracts, which test_conformance.py holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import BackendError
from lavagna.ops import selective_scan
from lavagna.ops.selective import cpu
from lavagna.ops.selective.spec import SPEC
from lavagna.ops.spec import Case, Inputs

from ..support.budget import close, close_all
from ..support.largest import Largest
from ..support.operators import Answer, answer, asking, draw, packed, resized, rows

ROW = next(row for row in rows(SPEC) if row.impl == "cpu")
CASES = {case.name: case for case in SPEC.cases}
ORDER = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias")
each_kind = pytest.mark.parametrize(
    "case", [CASES[n] for n in ("T100", "grouped", "C-constant-B-grouped", "bare")], ids=lambda c: c.name
)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def in_order(inputs: Inputs) -> list[Tensor | None]:
    return [inputs.tensors[name] for name in ORDER]


def options(inputs: Inputs) -> tuple[bool, float, float]:
    return (inputs.options["dt_softplus"], *(inputs.options["dt_limit"] or (-math.inf, math.inf)))


def same_bits(got: Answer, expected: Answer) -> None:
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


@each_kind
def test_the_same_threads_give_the_same_bits(case: Case, threads: None) -> None:
    """Others change the order of the sums over channels, dB and dC, and of those over sequences."""
    inputs = draw(SPEC, resized(case, D=96, T=40))
    torch.set_num_threads(1)
    alone = answer(SPEC, ROW, inputs)
    for count in (2, 3):
        torch.set_num_threads(count)
        first = answer(SPEC, ROW, inputs)
        close_all(first, alone, 1e-5)
        same_bits(answer(SPEC, ROW, inputs), first)
        for name in ("output", "state", "d output / d x", "d state / d dt"):
            assert torch.equal(first[name], alone[name]), name


@pytest.mark.parametrize("count", [2, 5])
def test_packed_sequences_in_several_threads(count: int, threads: None) -> None:
    inputs, bounds = packed(SPEC, CASES["grouped"], (3, 0, 70, 1))
    torch.set_num_threads(1)
    alone = answer(SPEC, ROW, inputs, cu_seqlens=bounds)
    torch.set_num_threads(count)
    close_all(answer(SPEC, ROW, inputs, cu_seqlens=bounds), alone, 1e-5)


def test_differentiating_twice_is_refused() -> None:
    inputs = asking(SPEC, draw(SPEC, CASES["T2"]))
    output = selective_scan(**inputs.tensors, **inputs.options, impl="cpu").output
    (first,) = torch.autograd.grad(output.sum(), inputs.tensors["x"], create_graph=True)
    with pytest.raises(BackendError, match="more than once"):
        torch.autograd.grad(first.sum(), inputs.tensors["x"])


@each_kind
def test_operators_are_what_torch_expects(case: Case) -> None:
    inputs = asking(SPEC, draw(SPEC, resized(case, B=1, T=3)))
    state = torch.randn(1, *inputs.tensors["A"].shape, requires_grad=True)
    for keep in (True, False):
        arguments = (*in_order(inputs), state, None, *options(inputs), keep)
        torch.library.opcheck(torch.ops.lavagna.selective_scan.default, arguments)
    token = [
        None if t is None else (t[:, :1] if t.ndim > 2 else t).detach() for t in (state.clone(), *in_order(inputs))
    ]
    token[0] = state.detach().clone()
    torch.library.opcheck(torch.ops.lavagna.selective_scan_step_.default, (*token, *options(inputs)))


@each_kind
@pytest.mark.parametrize("N", [1, 4, 16, 24, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_step_in_place_is_the_step(case: Case, N: int, dtype: torch.dtype) -> None:
    inputs = draw(SPEC, resized(case, T=1, N=N, D=36), dtype)
    start = torch.randn(len(inputs.tensors["x"]), 36, N, dtype=dtype)
    given: dict[str, Any] = {**inputs.tensors, **inputs.options, "impl": "cpu", "return_state": True}
    expected = selective_scan(**given, state=start)
    state = start.clone()
    output = cpu.step_(state, *in_order(inputs), *options(inputs))
    assert torch.equal(output, expected.output)
    assert torch.equal(state, expected.state)
    # The step has the states in the lanes, the scan the channels.
    scanned = selective_scan(**given, state=start.clone().requires_grad_())
    close("output", output, scanned.output.detach(), 1e-6 if dtype == torch.float32 else 1e-14)
    close("state", state, scanned.state.detach(), 1e-6 if dtype == torch.float32 else 1e-14)


def test_the_step_in_place_needs_a_contiguous_state() -> None:
    inputs = draw(SPEC, resized(CASES["T1"], T=1))
    assert inputs.state is not None
    state = inputs.state.mT.contiguous().mT
    with pytest.raises(BackendError, match="contiguous"):
        cpu.step_(state, *in_order(inputs), *options(inputs))


@pytest.mark.parametrize("D", [1, 15, 16, 17, 100, 600])
@pytest.mark.parametrize("N", [1, 5, 20])
def test_channels_and_states_of_any_number(D: int, N: int) -> None:
    """Vectors, pairs of vectors and blocks of channels that are not whole; more than one block."""
    inputs = double(draw(SPEC, resized(CASES["T65"], B=1, T=18, D=D, N=N)))
    close_all(answer(SPEC, ROW, inputs), answer(SPEC, PORTABLE, inputs), 1e-11)


def test_nothing_of_the_size_of_all_states_is_made() -> None:
    """The largest tensors are the inputs, and a state every 16 tokens."""
    T, D, N = 1000, 32, 16
    case = resized(CASES["T65"], B=1, T=T, D=D, N=N)
    inputs = asking(SPEC, draw(SPEC, case))
    with Largest() as largest:
        answer(SPEC, ROW, inputs)
    assert largest.elements <= max(T * D, (T // 16 + 1) * D * N)


def test_states_are_kept_only_for_gradients() -> None:
    inputs = draw(SPEC, resized(CASES["T1000"], D=16, N=64))
    with Largest() as largest:
        selective_scan(**inputs.tensors, **inputs.options, impl="cpu")
    assert largest.elements == 1000 * 16


@each_kind
def test_the_backward_pass_does_without_kept_states(case: Case) -> None:
    """A transform may ask for gradients that nobody could announce when the forward pass ran."""
    inputs = asking(SPEC, draw(SPEC, case))
    state = torch.randn(len(inputs.tensors["x"]), *inputs.tensors["A"].shape, requires_grad=True)
    tensors = [*in_order(inputs), state]

    def gradients(keep: bool) -> tuple[Tensor, ...]:
        output, final, _ = torch.ops.lavagna.selective_scan(*tensors, None, *options(inputs), keep)
        return torch.autograd.grad(output.sum() + final.sum(), [t for t in tensors if t is not None])

    for got, expected in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(got, expected)


def test_parts_of_one_projection_are_not_copied() -> None:
    """What a mixer hands over: x and z are halves of one projection, B and C parts of another."""
    B, T, D, N = 2, 40, 24, 16
    x, z = torch.randn(B, T, 2 * D).chunk(2, -1)
    dt = torch.rand(B, T, D)
    _, write, read = torch.randn(B, T, 3 + 2 * N).split([3, N, N], -1)
    A = -torch.rand(D, N)
    expected = selective_scan(*(t.contiguous() for t in (x, dt, A, write, read)), z=z.contiguous(), impl="cpu")
    assert torch.equal(selective_scan(x, dt, A, write, read, z=z, impl="cpu").output, expected.output)
    for part in (x, z, write, read):
        assert cpu.rows(part)[0].data_ptr() == part.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_softplus_keeps_its_digits_where_it_is_small(dtype: torch.dtype) -> None:
    """With A = 0 and B = C = x = 1 the first output is the step itself."""
    dt = torch.cat([-torch.logspace(-2, math.log10(80), 500), torch.logspace(-2, 2, 500)]).to(dtype)
    exact = torch.logaddexp(dt.double(), torch.zeros((), dtype=torch.float64))
    one = torch.ones(1000, 1, 1, dtype=dtype)
    found = selective_scan(one, dt.view(-1, 1, 1), one[0] * 0, one, one, dt_softplus=True, impl="cpu").output
    relative = (found.double().flatten() - exact).abs() / exact
    assert relative.max() <= 2.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("value", [-1e4, -87.0, 0.0, 87.0, 1e4])
def test_gates_and_steps_far_out(value: float) -> None:
    """silu and softplus neither overflow nor leave anything where they are 0."""
    one = torch.ones(1, 1, 1)
    skip = torch.ones(1)
    far = one * value
    gated = selective_scan(one, one * 0, -one[0], one, one, skip, far, impl="cpu").output
    close("gate", gated, torch.nn.functional.silu(far), 1e-6)
    stepped = selective_scan(one, far, one[0] * 0, one, one, dt_softplus=True, impl="cpu").output
    close("step", stepped, torch.nn.functional.softplus(far), 1e-6)


def test_decays_of_one_step_repeated_many_times() -> None:
    """Errors of a power that every token repeats add up: 2000 equal tokens, decays from e^-1e-4 to e^-0.04."""
    T = 2000
    A = -torch.logspace(-4, math.log10(0.04), 40).view(1, -1)
    dt = torch.ones(1, T, 1)
    zero = torch.zeros(1, T, 40)
    _, state = selective_scan(
        dt, dt, A, zero, zero, state=torch.ones(1, 1, 40), return_state=True, form="chunk", impl="cpu"
    )
    exact = (A.double() * T).exp()
    rounded = A.exp().double() ** T  # what the rounding of one decay to float32 makes of it
    error = (state[0].double() - exact).abs() / exact
    assert (error <= 2 * (rounded - exact).abs() / exact + T * 6e-8).all()


def double(inputs: Inputs) -> Inputs:
    return inputs._replace(
        tensors={name: None if t is None else t.double() for name, t in inputs.tensors.items()},
        state=None if inputs.state is None else inputs.state.double(),
    )


PORTABLE = next(row for row in rows(SPEC) if row.impl == "torch" and row.form == "chunk")


def test_every_pair_of_timed_and_constant_coefficients() -> None:
    kinds = {"timed": (1, 20, 3), "grouped": (1, 20, 2, 3), "constant": (40, 3)}
    x, dt, z = torch.randn(3, 1, 20, 40, dtype=torch.float64).unbind()
    A = -torch.rand(40, 3, dtype=torch.float64)
    for first, second in itertools.product(kinds.values(), repeat=2):
        leaves = [
            t.requires_grad_() for t in (x, dt, A, *(torch.randn(k, dtype=torch.float64) for k in (first, second)))
        ]
        found, expected = (
            torch.autograd.grad(
                selective_scan(*leaves, z=z, dt_softplus=True, impl=impl, form="chunk").output.sum(), leaves
            )
            for impl in ("cpu", "torch")
        )
        for got, exact in zip(found, expected, strict=True):
            close("gradient", got, exact, 1e-12)
