"""The budget lets a rounded answer pass and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from .budget import check, check_all, close, close_all

EXACT = torch.randn(3, 50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
EPS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)}


@pytest.mark.parametrize("dtype", EPS, ids=str)
def test_a_rounded_answer_passes(dtype: torch.dtype) -> None:
    check("x", EXACT.to(dtype), EXACT.to(dtype), EXACT)
    largest = EXACT.abs().max()
    check("x", (EXACT + 6 * EPS[dtype] * largest).to(dtype), EXACT.to(dtype), EXACT)


def test_the_band_is_that_of_the_dtype_and_of_the_largest_value() -> None:
    exact = torch.tensor([1.0, 4.0], dtype=torch.float64)
    band = 4 * EPS[torch.float32] * 4
    check("x", torch.tensor([1 + 2 * band, 4]), exact.float(), exact)
    with pytest.raises(AssertionError, match="x: error"):
        check("x", torch.tensor([1 + 2 * band + 1e-6, 4]), exact.float(), exact)


def test_an_error_of_the_reference_is_allowed_twice() -> None:
    exact = torch.zeros(2, dtype=torch.float64)
    same = torch.tensor([0.0, 0.5])
    check("x", torch.tensor([1.0, 0.0]), same, exact)
    with pytest.raises(AssertionError, match=r"2\.2 times|1\.1 times"):
        check("x", torch.tensor([1.1, 0.0]), same, exact)


def one(index: int, value: float) -> Callable[[Tensor], Tensor]:
    def replace(x: Tensor) -> Tensor:
        x = x.clone()
        x.view(-1)[index] = value
        return x

    return replace


WRONG = {
    "a relative error of a few budgets": lambda x: x * (1 + 100 * torch.finfo(x.dtype).eps),
    "one value wrong": one(17, 5.0),
    "one sign wrong": lambda x: torch.where(x.abs() == x.abs().max(), -x, x),
    "NaN": one(0, float("nan")),
    "the last one NaN": one(-1, float("nan")),
    "infinity": one(5, float("inf")),
    "another shape": lambda x: x[:, :-1],
    "a dimension more": lambda x: x[None],
    "transposed": lambda x: x.mT,
    "another dtype": lambda x: x.half(),
    "zeros": torch.zeros_like,
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_fails(wrong: Callable[[Tensor], Tensor]) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(AssertionError, match="output"):
            check("output", wrong(EXACT.to(dtype)), EXACT.to(dtype), EXACT)
    with pytest.raises(AssertionError, match="output"):
        check_all({"output": wrong(EXACT.float())}, {"output": EXACT.float()}, {"output": EXACT})


@pytest.mark.parametrize("wrong", [w for name, w in WRONG.items() if "relative" not in name])
def test_a_wrong_answer_is_not_close(wrong: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(AssertionError, match="output"):
        close("output", wrong(EXACT), EXACT)
    with pytest.raises(AssertionError, match="output"):
        close_all({"output": wrong(EXACT)}, {"output": EXACT})


def test_close_is_relative_to_the_largest_value() -> None:
    close("x", EXACT + 1e-12, EXACT)
    with pytest.raises(AssertionError, match="difference"):
        close("x", EXACT * (1 + 1e-8), EXACT)
    with pytest.raises(AssertionError, match="difference"):
        close("x", torch.tensor([1e-30]), torch.tensor([0.0]))


def test_a_missing_tensor_fails() -> None:
    with pytest.raises(AssertionError):
        check_all({}, {"output": EXACT.float()}, {"output": EXACT})
    with pytest.raises(AssertionError):
        close_all({"output": EXACT, "more": EXACT}, {"output": EXACT})


def test_a_case_without_a_finite_reference_fails() -> None:
    broken = one(3, float("nan"))(EXACT)
    with pytest.raises(AssertionError, match="reference is not finite"):
        check("x", EXACT.float(), EXACT.float(), broken)
    with pytest.raises(AssertionError, match="expected values are not finite"):
        close("x", EXACT, broken)


def test_a_broken_reference_gives_no_room() -> None:
    with pytest.raises(AssertionError, match="budget"):
        check("x", EXACT.float(), one(0, float("nan"))(EXACT.float()), EXACT)


def test_empty_and_complex_tensors() -> None:
    empty = torch.zeros(0, 3)
    check("x", empty, empty, empty.double())
    exact = torch.complex(EXACT, -EXACT)
    check("x", exact.to(torch.complex64), exact.to(torch.complex64), exact)
    with pytest.raises(AssertionError, match="error"):
        check("x", exact.conj().to(torch.complex64), exact.to(torch.complex64), exact)
