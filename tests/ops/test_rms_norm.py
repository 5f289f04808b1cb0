"""The norm with a gate: the formula, on the portable path and on the native kernels, with every gradient."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lavagna import native
from lavagna.errors import BackendError
from lavagna.ops.dispatch import automatic
from lavagna.ops.rms_norm import GATES, rms_norm

from ..support.budget import check_all

pytestmark = pytest.mark.subset

IMPLS = ("torch", "cpu") if native.available() else ("torch",)

#: shape of x, and of the weight: sizes below, at and above a vector, one weight for each head, many rows
SHAPES = (
    ((3, 7, 4, 37), (37,)),
    ((3, 7, 4, 37), (4, 37)),
    ((2, 40, 64), (64,)),
    ((1, 1, 2, 2), (2, 2)),
    ((5, 3), (3,)),
    ((2, 0, 8), (8,)),
)


def literal(x: Tensor, weight: Tensor, gate: Tensor | None, act: str, gate_first: bool) -> Tensor:
    factor = torch.ones_like(x) if gate is None else gate * torch.sigmoid(gate) if act == "silu" else gate.sigmoid()
    u = x * factor if gate_first else x
    y = weight * u / torch.sqrt((u * u).mean(-1, keepdim=True) + 1e-5)
    return y if gate_first else y * factor


def answer(function: Callable[..., Tensor], *tensors: Tensor | None) -> dict[str, Tensor]:
    asking = [t if t is None else t.detach().requires_grad_() for t in tensors]
    y = function(*asking)
    upstream = torch.sin(torch.arange(y.numel(), dtype=torch.float64)).view(y.shape).to(y.dtype)
    given = [t for t in asking if t is not None]
    found = torch.autograd.grad(y, given, upstream)
    return {"output": y, **{f"gradient {i}": g for i, g in enumerate(found)}}


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("act", [None, *GATES])
@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize(("shape", "weights"), SHAPES)
def test_it_is_the_formula(
    shape: tuple[int, ...], weights: tuple[int, ...], gate_first: bool, act: str | None, impl: str
) -> None:
    x, weight, gate = torch.randn(shape), torch.randn(weights), None if act is None else torch.randn(shape)
    name = act or "silu"

    def ours(x: Tensor, weight: Tensor, gate: Tensor | None) -> Tensor:
        return rms_norm(x, weight, gate, act=name, gate_first=gate_first)

    def expected(x: Tensor, weight: Tensor, gate: Tensor | None) -> Tensor:
        return literal(x, weight, gate, name, gate_first)

    wide = [t if t is None else t.double() for t in (x, weight, gate)]
    with automatic(impl):
        check_all(answer(ours, x, weight, gate), answer(expected, x, weight, gate), answer(expected, *wide))
        for got, want in zip(answer(ours, *wide).values(), answer(expected, *wide).values(), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("impl", IMPLS)
def test_parts_of_a_wider_projection_are_as_good_as_copies(impl: str) -> None:
    wide = torch.full((2, 9, 40), torch.nan)
    wide[..., 3:35] = torch.randn(2, 9, 32)
    x, gate = (part.unflatten(-1, (2, 8)) for part in wide[..., 3:35].chunk(2, -1))
    weight = torch.randn(2, 8, 2)[..., 0]
    with automatic(impl):
        got = answer(rms_norm, x, weight, gate)
        copies = answer(rms_norm, x.contiguous(), weight.contiguous(), gate.contiguous())
    for name, tensor in copies.items():
        torch.testing.assert_close(got[name], tensor)


@pytest.mark.parametrize("impl", IMPLS)
def test_zeros_are_finite(impl: str) -> None:
    with automatic(impl):
        found = answer(rms_norm, torch.zeros(2, 3, 8), torch.ones(8), torch.zeros(2, 3, 8))
    assert all(bool(t.isfinite().all()) for t in found.values())


if native.available():  # what holds of the kernels alone

    def test_two_threads_give_the_same_bits_as_one() -> None:
        inputs = (torch.randn(2, 50, 3, 20), torch.randn(20), torch.randn(2, 50, 3, 20))
        alone = answer(rms_norm, *inputs)
        torch.set_num_threads(2)
        together = answer(rms_norm, *inputs)
        for name, tensor in alone.items():
            assert torch.equal(together[name], tensor)

    def test_it_is_differentiated_once() -> None:
        x = torch.randn(4, 8, requires_grad=True)
        (gradient,) = torch.autograd.grad(rms_norm(x, torch.ones(8)).square().sum(), x, create_graph=True)
        with pytest.raises(BackendError, match="no derivative"):
            gradient.sum().backward()

    def test_torch_accepts_the_operator() -> None:
        x, gate = torch.randn(2, 5, 3, 8, requires_grad=True), torch.randn(2, 5, 3, 8, requires_grad=True)
        weight = torch.ones(8, requires_grad=True)
        torch.library.opcheck(torch.ops.lavagna.rms_norm.default, (x, weight, gate, 1, False, 1e-5))
        torch.library.opcheck(torch.ops.lavagna.rms_norm.default, (x, weight, None, 0, False, 1e-5))
