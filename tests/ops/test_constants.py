"""What follows from parameters alone, kept from step to step."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from lavagna.ops.constants import Constants, constant, keeping, widened

calls: list[Tensor] = []


def counted(x: Tensor) -> Tensor:
    calls.append(x)
    return 2 * x


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    calls.clear()
    with torch.no_grad():
        yield


def parameter(*numbers: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor(numbers, dtype=torch.float32))


def test_it_is_computed_once_where_it_is_kept() -> None:
    p, q = parameter(1), parameter(3)
    kept: Constants = {}
    for _ in range(2):
        with keeping(kept):
            assert [constant(p, counted).item(), constant(q, counted).item()] == [2, 6]
            assert widened(p, torch.float64) is widened(p, torch.float64)
    assert len(calls) == 2


def test_outside_and_in_another_run_it_is_computed_again() -> None:
    p = parameter(1)
    with keeping({}):
        constant(p, counted)
    p.fill_(5)
    assert constant(p, counted).item() == 10
    with keeping({}):
        assert constant(p, counted).item() == 10


def test_only_parameters_are_kept_and_only_without_gradient() -> None:
    kept: Constants = {}
    with keeping(kept):
        constant(torch.ones(1), counted)
        widened(torch.ones(1), torch.float64)
        widened(parameter(1), torch.float32)
        with torch.enable_grad():
            assert constant(parameter(1), counted).requires_grad
    assert kept == {}


def test_other_threads_keep_nothing_here() -> None:
    kept: Constants = {}
    with keeping(kept):
        thread = threading.Thread(target=constant, args=(parameter(1), counted))
        thread.start()
        thread.join()
    assert len(calls) == 1
    assert kept == {}


def test_what_was_kept_before_comes_back_after_a_fault() -> None:
    p = parameter(1)
    with keeping({}):
        constant(p, counted)
        with pytest.raises(ZeroDivisionError), keeping({}):
            raise ZeroDivisionError
        constant(p, counted)
    assert len(calls) == 1
