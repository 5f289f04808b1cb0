"""Differences: the step is chosen, kinks are told from wrong gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor

from lavagna.audit.checks.gradients import _differences, _Line, _Loss


class Loss:
    """A function of one number, with the noise that its rounding makes."""

    noise = 1e-16

    def __init__(self, function: Callable[[Tensor], Tensor], at: float) -> None:
        self.function = function
        self.x = torch.tensor(at, dtype=torch.float64)

    def __call__(self) -> float:
        return float(self.function(self.x))


def slope(function: Callable[[Tensor], Tensor], at: float, claimed: float, size: float = 1.0) -> tuple[float, bool]:
    """The derivative found, and whether it is said to be a kink."""
    loss = Loss(function, at)
    line = _Line("x", [loss.x], [torch.ones_like(loss.x)], size, claimed)
    found = _differences(cast("_Loss", loss), line, loss(), 1e-3)
    assert float(loss.x) == at, "what is moved must come back"
    return found.value, found.kink


@pytest.mark.parametrize(
    ("function", "at", "size", "expected"),
    [
        (torch.sin, 1.0, 1.0, 0.5403023058681398),
        (lambda x: torch.sin(300 * x), 0.0, 1.0, 300.0),  # a step of 0.1 sees nothing of this
        (lambda x: x**3, 1e-3, 1e-3, 3e-6),
        (lambda x: 1e6 + x, 0.0, 1.0, 1.0),  # and a tiny one is lost beside a million
    ],
)
def test_the_step_is_chosen(function: Callable[[Tensor], Tensor], at: float, size: float, expected: float) -> None:
    value, kink = slope(function, at, claimed=0.0, size=size)  # a wrong claim, so that all steps are tried
    assert value == pytest.approx(expected, rel=1e-5)
    assert not kink


def test_a_kink_is_seen() -> None:
    assert slope(torch.relu, 0.0, claimed=0.0)[1]
    assert slope(torch.abs, 0.0, claimed=1.0)[1]
    assert slope(lambda x: torch.relu(x) + 3 * x, 0.0, claimed=3.0)[1]


def test_beside_a_kink_there_is_none() -> None:
    value, kink = slope(torch.relu, 1e-3, claimed=0.5)
    assert value == pytest.approx(1.0)
    assert not kink


def test_a_right_claim_needs_two_steps_only() -> None:
    calls = 0

    def counted(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.sin(x)

    slope(counted, 0.0, claimed=1.0)
    assert calls == 5  # the middle, and two on each side
