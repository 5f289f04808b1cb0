"""Half precision and autocast: every mixer with every option runs, forward and backward, with its state in float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.mixers import MIXERS, MLPS, Mixer, build
from lavagna.ops.tree import leaves

from ..support.mixers import randomised
from ..support.variants import VARIANTS, WIDTH

ALL = {**MIXERS, **MLPS}
CASES = [pytest.param(name, options, id=f"{name}-{i}") for name in ALL for i, options in enumerate(VARIANTS[name])]
KEPT = {torch.float32, torch.complex64, torch.int64}


def made(name: str, options: dict[str, Any]) -> Mixer:
    return randomised(build(name, WIDTH, options, table=ALL))


def split(m: Mixer, x: Tensor) -> tuple[Tensor, Any]:
    """Two calls where there is a state to carry, one where there is none."""
    if m.init_state(1) is None:
        return m(x)
    first, state = m(x[:, :3])
    second, state = m(x[:, 3:], state)
    return torch.cat([first, second], 1), state


def finite_gradients(m: Mixer, y: Tensor, x: Tensor) -> None:
    y.float().square().sum().backward()
    for name, tensor in [("x", x), *m.named_parameters()]:
        assert tensor.grad is not None, name
        assert torch.isfinite(tensor.grad).all(), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "options"), CASES)
def test_half_precision(name: str, options: dict[str, Any], dtype: torch.dtype) -> None:
    m = made(name, options).to(dtype)
    x = torch.randn(2, 7, WIDTH).to(dtype).requires_grad_()
    y, state = split(m, x)
    assert y.dtype == dtype
    kept = {dtype, torch.int64} if name == "attention" else KEPT
    assert {leaf.dtype for leaf in leaves(state)} <= kept
    assert {leaf.dtype for leaf in leaves(m.init_state(2))} <= kept
    finite_gradients(m, y, x)
    # The same weights in float32 give nearly the same: what is rounded is rounded about once.
    exact, _ = m.float()(x.detach().float())
    assert (y.float() - exact).abs().max() < 40 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_autocast(name: str, options: dict[str, Any]) -> None:
    m = made(name, options)
    x = torch.randn(2, 7, WIDTH, requires_grad=True)
    exact, _ = m(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = split(m, x)
    kept = {torch.bfloat16, torch.int64} if name == "attention" else KEPT
    assert {leaf.dtype for leaf in leaves(state)} <= kept
    finite_gradients(m, y, x)
    assert (y.float() - exact).abs().max() < 40 * torch.finfo(torch.bfloat16).eps * exact.abs().max()


@pytest.mark.parametrize(("name", "options"), CASES)
def test_double_precision_and_every_gradient(name: str, options: dict[str, Any]) -> None:
    """Move the input and every parameter a little: the output moves as the gradients say, to float64's precision.

    With float32 anywhere inside, differences of 1e-6 would drown in its rounding.
    """
    m = made(name, options).double()
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    moved = [x, *m.parameters()]
    direction = [torch.randn_like(tensor) for tensor in moved]
    weight = torch.randn_like(x)

    def run() -> Tensor:
        y, state = split(m, x)
        assert y.dtype == torch.float64
        assert {leaf.dtype for leaf in leaves(state)} <= {torch.float64, torch.complex128, torch.int64}
        return (y * weight).sum()

    gradients = torch.autograd.grad(run(), moved)
    slope = sum((g * d).sum() for g, d in zip(gradients, direction, strict=True))
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for tensor, d in zip(moved, direction, strict=True):
                tensor += step * d
            values.append(run())
    assert abs((values[0] - values[1]) / 2e-6 - slope) < 1e-6 * abs(slope) + 1e-7
