"""What is special to the native kernels of gated_linear; the contracts are in test_conformance.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from lavagna.errors import BackendError
from lavagna.ops import gated_linear
from lavagna.ops.linear import cpu
from lavagna.ops.linear.api import LinearState

from ..support.budget import close

GATES = pytest.mark.parametrize("gate", [None, "constant", "scalar", "channel"])
KEYS, VALUES = 20, 70  # neither of whole vectors; more than one strip of columns


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def draw(
    T: int = 150,
    gate: str | None = "channel",
    *,
    B: int = 1,
    H: int = 1,
    HV: int = 1,
    dtype: torch.dtype = torch.float64,
) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    shape = {"constant": (HV,), "scalar": (B, T, HV), "channel": (B, T, HV, KEYS)}
    return {
        "q": normal(B, T, H, KEYS),
        "k": normal(B, T, H, KEYS),
        "v": normal(B, T, HV, VALUES),
        "log_decay": None if gate is None else -0.1 * normal(*shape[gate]).square(),
        "bonus": None,
        "state": normal(B, HV, KEYS, VALUES),
    }


def answers(inputs: dict[str, Tensor | None], **options: object) -> list[Tensor]:
    """Output, state and all gradients."""
    asked = {name: t.clone().requires_grad_() for name, t in inputs.items() if t is not None}
    found = gated_linear(**{**inputs, **asked}, return_state=True, **{"impl": "cpu", **options})
    loss = found.output.sin().sum() + found.state.cos().sum()
    return [found.output.detach(), found.state.detach(), *torch.autograd.grad(loss, list(asked.values()))]


@GATES
@pytest.mark.parametrize(("H", "HV"), [(1, 1), (1, 3), (2, 4)])
def test_threads_share_the_work_and_change_only_the_rounding(gate: str | None, H: int, HV: int) -> None:
    """One head is shared by its columns, several value heads of one key head by heads: with three threads unevenly."""
    inputs = draw(gate=gate, H=H, HV=HV)
    torch.set_num_threads(1)
    alone = answers(inputs)
    for count in (2, 3):
        torch.set_num_threads(count)
        together = answers(inputs)
        for expected, got in zip(alone, together, strict=True):
            close(f"with {count} threads", got, expected, 1e-13)


@GATES
def test_the_same_threads_give_the_same_bits(gate: str | None) -> None:
    torch.set_num_threads(2)
    inputs = draw(gate=gate, B=2, H=1, HV=3, dtype=torch.float32)
    for first, second in zip(answers(inputs), answers(inputs), strict=True):
        assert torch.equal(first, second)


@GATES
@pytest.mark.parametrize("form", ["recurrent", "chunk"])
def test_the_length_of_a_chunk_is_a_hint(gate: str | None, form: str) -> None:
    inputs = draw(gate=gate, H=1, HV=2)
    expected = answers(inputs, form=form)
    for chunk_size in (1, 16, 40, 1000):
        for one, other in zip(expected, answers(inputs, form=form, chunk_size=chunk_size), strict=True):
            close(f"chunks of {chunk_size}", other, one, 1e-13)


@GATES
@pytest.mark.parametrize("normalizer", [False, True])
@pytest.mark.parametrize("bonus", [False, True])
def test_a_step_in_place_is_a_step(gate: str | None, normalizer: bool, bonus: bool) -> None:
    inputs = draw(1, gate, B=2, H=2, HV=4)
    q, k, v, log_decay, _, S = inputs.values()
    q, k = q.abs(), k.abs()
    u = torch.rand(4, KEYS, dtype=torch.float64) if bonus else None
    z = torch.rand(2, 4, KEYS, dtype=torch.float64) if normalizer else None
    state = LinearState(S, z) if normalizer else S
    expected = gated_linear(
        q, k, v, log_decay, u, normalizer=normalizer, scale=0.3, state=state, return_state=True, impl="reference"
    )
    with torch.no_grad():
        got = cpu.step_(S, z, q, k, v, log_decay, u, 0.3)
    close("output", got, expected.output, 1e-14)
    close("S", S, expected.state.S if normalizer else expected.state, 1e-14)
    if normalizer:
        close("z", z, expected.state.z, 1e-14)


def test_the_step_in_place_needs_a_contiguous_state() -> None:
    q, k, v = (torch.randn(2, 1, 1, 4) for _ in range(3))
    with pytest.raises(BackendError, match="gated_linear_step_ writes on a contiguous state"):
        cpu.step_(torch.randn(2, 1, 4, 4).mT, None, q, k, v, None, None, 0.3)


def test_a_second_derivative_is_refused() -> None:
    q, k, v = (torch.randn(1, 20, 1, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    (dq,) = torch.autograd.grad(gated_linear(q, k, v, impl="cpu").output.sum(), q, create_graph=True)
    with pytest.raises(BackendError, match="gated_linear_backward has no derivative; impl='torch'"):
        dq.sum().backward()


@GATES
@pytest.mark.parametrize("normalizer", [False, True])
def test_the_operators_are_operators_of_torch(gate: str | None, normalizer: bool) -> None:
    inputs = draw(20, gate, B=2, H=1, HV=2)
    asked = [t if t is None else t.requires_grad_() for t in inputs.values()]
    z = torch.rand(2, 2, KEYS, dtype=torch.float64).requires_grad_() if normalizer else None
    if normalizer:
        asked[:2] = [t.detach().abs().requires_grad_() for t in asked[:2]]
    for size in (0, 16):
        torch.library.opcheck(torch.ops.lavagna.gated_linear.default, (*asked, z, None, 0.3, size, True))
    still = [t if t is None else t.detach()[:, :1] if t.ndim > 2 and t.shape[1] == 20 else t.detach() for t in asked]
    S, state_z = still[-1].clone(), None if z is None else z.detach().clone()
    torch.library.opcheck(
        torch.ops.lavagna.gated_linear_steps.default,
        (*still, state_z, None, 0.3),
        test_utils=("test_schema", "test_faketensor"),
    )
    torch.library.opcheck(
        torch.ops.lavagna.gated_linear_step_.default,
        (S, state_z, *still[:5], 0.3),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_a_gradient_that_nobody_announced() -> None:
    """The operator of torch itself may be called without the states that the backward pass needs."""
    inputs = draw(100, "scalar")
    asked = [t if t is None else t.clone().requires_grad_() for t in inputs.values()]
    found = []
    for keep in (False, True):
        o = torch.ops.lavagna.gated_linear(*asked, None, None, 0.3, 16, keep)[0]
        found.append(torch.autograd.grad(o.sin().sum(), [t for t in asked if t is not None]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("K", "tokens"), [(4, 16), (64, 32), (100, 32), (128, 64), (512, 64)])
def test_what_the_backward_pass_keeps_is_a_state_in_half_k_tokens(K: int, tokens: int) -> None:
    q, k, v = (torch.randn(2, 640, heads, size) for heads, size in ((1, K), (1, K), (3, 5)))
    S = torch.zeros(2, 3, K, 5)
    for keep, shape in ((True, (2 * 640 // tokens, 3, 5, K + -K % 16)), (False, (0,))):
        *_, kept = torch.ops.lavagna.gated_linear(q, k, v, None, None, S, None, None, 1.0, 16, keep)
        assert kept.shape == shape


def test_parts_of_a_wider_projection_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = torch.randn(2, 30, 4 * 8 + 3)
    q, k = (wide[..., start : start + 8].unflatten(-1, (2, 4)) for start in (0, 8))
    v = wide[..., 16:32].unflatten(-1, (2, 8))
    expected = gated_linear(q.contiguous(), k.contiguous(), v.contiguous(), impl="cpu").output

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an input was copied")

    monkeypatch.setattr(Tensor, "clone", refuse)
    monkeypatch.setattr(Tensor, "contiguous", lambda t: t if t.is_contiguous() else refuse())
    assert torch.equal(gated_linear(q, k, v, impl="cpu").output, expected)
