"""What the native kernels of gated_delta promise beyond the contracts, which test_conformance.py holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lavagna.errors import BackendError
from lavagna.ops import gated_delta
from lavagna.ops.delta import cpu
from lavagna.ops.delta.spec import SPEC
from lavagna.ops.dispatch import Row
from lavagna.ops.spec import Case

from ..support.largest import Largest
from ..support.operators import Answer, answer, asking, draw, packed, resized, rows

ROWS = [row for row in rows(SPEC) if row.impl == "cpu"]
CASES = {case.name: case for case in SPEC.cases}
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.form)
each_fading = pytest.mark.parametrize(
    "case", [CASES[n] for n in ("no-decay", "T100", "two-groups")], ids=lambda c: c.name
)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def same_bits(got: Answer, expected: Answer) -> None:
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


@each_row
@each_fading
def test_any_number_of_threads_gives_the_same_bits(row: Row, case: Case, threads: None) -> None:
    """No sum goes over tasks: not even the cut of a memory into blocks of columns changes an order."""
    inputs = draw(SPEC, resized(case, B=1, T=150, V=70))
    torch.set_num_threads(1)
    alone = answer(SPEC, row, inputs)
    for count in (2, 3, 3):
        torch.set_num_threads(count)
        same_bits(answer(SPEC, row, inputs), alone)


@each_row
def test_packed_sequences_in_two_threads(row: Row, threads: None) -> None:
    inputs, bounds = packed(SPEC, CASES["two-groups"], (3, 0, 70, 1))
    torch.set_num_threads(1)
    alone = answer(SPEC, row, inputs, cu_seqlens=bounds)
    torch.set_num_threads(2)
    same_bits(answer(SPEC, row, inputs, cu_seqlens=bounds), alone)


@each_row
def test_differentiating_twice_is_refused(row: Row) -> None:
    inputs = asking(SPEC, draw(SPEC, CASES["T2"]))
    output = gated_delta(**inputs.tensors, impl=row.impl, form=row.form).output
    (first,) = torch.autograd.grad(output.sum(), inputs.tensors["q"], create_graph=True)
    with pytest.raises(BackendError, match="more than once"):
        torch.autograd.grad(first.sum(), inputs.tensors["k"])


@each_fading
def test_operators_are_what_torch_expects(case: Case) -> None:
    inputs = asking(SPEC, draw(SPEC, resized(case, B=1, T=5, K=4)))
    tensors = [inputs.tensors[name] for name in ("q", "k", "v", "beta", "log_decay")]
    for size, keep in ((16, True), (0, False)):
        arguments = (*tensors, inputs.state, None, True, 0.5, size, keep)
        torch.library.opcheck(torch.ops.lavagna.gated_delta.default, arguments)
    plain = [t if t is None else t.detach() for t in (inputs.state, *(t if t is None else t[:, :1] for t in tensors))]
    torch.library.opcheck(torch.ops.lavagna.gated_delta_step_.default, (*plain, True, 0.5))


@each_fading
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_step_in_place_is_the_step(case: Case, dtype: torch.dtype) -> None:
    inputs = draw(SPEC, resized(case, T=1, V=150), dtype)
    options = {"qk_l2norm": True, "scale": 0.5}
    expected = gated_delta(**inputs.tensors, **options, state=inputs.state, return_state=True, impl="cpu")
    state = inputs.state.clone()
    order = ("q", "k", "v", "beta", "log_decay")
    output = cpu.step_(state, *(inputs.tensors[name] for name in order), True, 0.5)
    assert torch.equal(output, expected.output)
    assert torch.equal(state, expected.state)


def test_the_step_in_place_needs_a_contiguous_state() -> None:
    inputs = draw(SPEC, resized(CASES["no-decay"], T=1))
    state = inputs.state.transpose(2, 3).contiguous().transpose(2, 3)
    with pytest.raises(BackendError, match="contiguous"):
        cpu.step_(state, *(inputs.tensors[name] for name in ("q", "k", "v", "beta", "log_decay")), True, 0.5)


@each_row
@pytest.mark.parametrize("fading", ["scalar", "vector"])
def test_nothing_between_the_tokens_is_kept(row: Row, fading: str) -> None:
    """The largest tensors are the outputs and a memory every 64 tokens."""
    T, K, V = 1000, 32, 16
    case = Case("memory", {"B": 1, "T": T, "H": 1, "HV": 1, "K": K, "V": V}, {}, {"decay": fading})
    inputs = asking(SPEC, draw(SPEC, case))
    with Largest() as largest:
        output = gated_delta(**inputs.tensors, state=inputs.state, impl=row.impl, form=row.form).output
        torch.autograd.grad(output.sum(), inputs.tensors["q"])
    assert largest.elements <= max(T * K, (T // 64 + 1) * K * V)


def test_memories_are_kept_only_for_gradients() -> None:
    inputs = draw(SPEC, CASES["T100"])
    with Largest() as largest:
        gated_delta(**inputs.tensors, state=inputs.state, impl="cpu")
    assert largest.elements <= max(inputs.tensors["v"].numel(), inputs.state.numel())


def test_the_backward_pass_does_without_kept_memories() -> None:
    """A transform may ask for gradients that nobody could announce when the forward pass ran."""
    inputs = asking(SPEC, draw(SPEC, CASES["T100"]))
    tensors = [inputs.tensors[name] for name in ("q", "k", "v", "beta", "log_decay")]

    def gradients(keep: bool) -> tuple[Tensor, ...]:
        output, final, _ = torch.ops.lavagna.gated_delta(*tensors, inputs.state, None, False, 1.0, 16, keep)
        return torch.autograd.grad((output.sum() + final.sum()), [*tensors, inputs.state])

    for got, expected in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(got, expected)


def test_parts_of_one_projection_are_not_copied() -> None:
    """What a mixer hands over: q, k and v side by side in one tensor."""
    B, T, H, K, V = 2, 70, 2, 16, 24
    together = torch.randn(B, T, H * (2 * K + V))
    q, k, v = (x.unflatten(-1, (H, -1)) for x in together.split([H * K, H * K, H * V], -1))
    beta = torch.rand(B, T, H)
    expected = gated_delta(q.contiguous(), k.contiguous(), v.contiguous(), beta, impl="cpu", qk_l2norm=True)
    assert torch.equal(gated_delta(q, k, v, beta, impl="cpu", qk_l2norm=True).output, expected.output)
    assert [cpu.rows(x)[0].data_ptr() for x in (q, k, v)] == [x.data_ptr() for x in (q, k, v)]
