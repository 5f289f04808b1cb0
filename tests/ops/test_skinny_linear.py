"""Linear layers of a few tokens: the product against float64, and when torch makes it instead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import BackendError
from lavagna.ops import skinny_linear
from lavagna.ops.dispatch import automatic
from lavagna.ops.skinny_linear import fits, linear

from ..support.budget import check

pytestmark = pytest.mark.subset

FORMATS = [torch.float32, torch.bfloat16]

#: inputs and outputs: below, at and above the vectors of every instruction set and the rows read at once
SIZES = [(1, 1), (3, 5), (16, 4), (17, 7), (31, 64), (33, 9), (48, 100), (64, 3), (100, 33), (257, 129), (1536, 80)]


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def surrounded(tensor: Tensor) -> Tensor:
    """The same numbers with NaN on both sides in memory."""
    around = torch.full((tensor.numel() + 128,), torch.nan, dtype=tensor.dtype)
    around[64:-64] = tensor.flatten()
    return around[64:-64].view(tensor.shape)


def operands(inputs: int, outputs: int, rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((rows, inputs), (outputs, inputs), (outputs,))
    return tuple(surrounded(torch.randn(shape).to(dtype)) for shape in shapes)


def native_product(*arguments: Tensor | None) -> Tensor:
    return torch.ops.lavagna.skinny_linear(*arguments)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_it_is_the_product(inputs: int, outputs: int, rows: int, dtype: torch.dtype) -> None:
    x, weight, bias = operands(inputs, outputs, rows, dtype)
    for given in (bias, None):
        exact = F.linear(x.double(), weight.double(), None if given is None else given.double())
        plain = F.linear(x.float(), weight.float(), None if given is None else given.float()).to(dtype)
        check("y", native_product(x, weight, given), plain, exact)


def test_zeros_and_infinities_and_nan_are_numbers_like_others() -> None:
    for dtype in FORMATS:
        x, weight = torch.ones(2, 40, dtype=dtype), torch.ones(3, 40, dtype=dtype)
        x[1, 39], weight[0, 5], weight[1, 33] = -torch.inf, torch.inf, torch.nan
        got = native_product(x, weight, None).float()
        torch.testing.assert_close(got, F.linear(x.float(), weight.float()), equal_nan=True)


def test_halves_are_rounded_to_the_nearest_even() -> None:
    x = torch.ones(1, 2, dtype=torch.bfloat16)
    weight = torch.tensor([[1.0, 2.0**-8], [1.0 + 2.0**-7, 2.0**-8], [1.0, 2.0**-8 + 2.0**-15]], dtype=torch.bfloat16)
    assert native_product(x, weight, None).tolist() == [[1.0, 1.0 + 2.0**-6, 1.0 + 2.0**-7]]


@pytest.mark.parametrize("dtype", FORMATS)
def test_neither_threads_nor_other_rows_change_a_bit(dtype: torch.dtype) -> None:
    x, weight, bias = operands(333, 257, 4, dtype)  # large enough to be shared among threads
    alone = torch.cat([native_product(row[None], weight, bias) for row in x])
    answers = [native_product(x, weight, bias)]
    torch.set_num_threads(2)
    answers += [native_product(x, weight, bias) for _ in range(3)]
    torch.set_num_threads(1)
    assert all(torch.equal(alone, answer) for answer in answers)


def test_strides_are_no_matter() -> None:
    x, weight, bias = operands(20, 7, 4)
    spread = torch.stack([x, x], -1)[..., 0]
    part = torch.cat([torch.full((1, 1, 3), torch.nan), x[None, :1]], -1)[..., 3:]
    assert torch.equal(linear(spread, weight, torch.stack([bias, bias], 1)[:, 0]), native_product(x, weight, bias))
    assert torch.equal(linear(part, weight), native_product(x[None, :1], weight, None))
    assert linear(x.view(2, 1, 2, 20), weight).shape == (2, 1, 2, 7)
    turned = x.view(2, 1, 2, 20).transpose(0, 2)
    assert torch.equal(linear(turned, weight), native_product(turned.reshape(4, 20), weight, None).view(2, 1, 2, 7))


def test_only_what_the_kernel_takes_goes_to_it() -> None:
    x, weight, bias = operands(20, 7, 4)
    assert fits(x, weight, bias)
    assert fits(x[:0].new_ones(20), weight, None)
    others = {
        "too many rows": (torch.ones(5, 20), weight, bias),
        "no row": (x[:0], weight, bias),
        "no input": (torch.ones(1, 0), torch.ones(7, 0), bias),
        "another dtype": (x.double(), weight.double(), bias.double()),
        "half precision of the other kind": (x.half(), weight.half(), bias.half()),
        "mixed dtypes, which torch refuses": (x, weight.bfloat16(), None),
        "a bias of another dtype": (x, weight, bias.bfloat16()),
        "strides": (x, torch.ones(20, 7).mT, bias),
        "sizes that do not fit": (torch.ones(2, 40), weight, bias),
        "another device": (x.to("meta"), weight.to("meta"), None),
    }
    assert not [why for why, arguments in others.items() if fits(*arguments)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not fits(x, weight, bias)
        assert linear(x, weight, bias).dtype == torch.bfloat16
    with automatic("torch"):
        assert not fits(x, weight, bias)
    for why in ("too many rows", "no row", "no input", "another dtype", "strides"):
        torch.testing.assert_close(linear(*others[why]), F.linear(*others[why]), msg=why)


def test_the_kernel_is_what_a_step_runs_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = operands(20, 7, 1)
    monkeypatch.setattr(skinny_linear, "_forward", lambda *arguments: "the kernel")
    assert linear(x, weight, bias) == "the kernel"
    with torch.enable_grad():
        assert isinstance(linear(x, weight, bias), Tensor)


def test_it_has_no_derivative() -> None:
    x, weight, bias = operands(20, 7, 1)
    with torch.enable_grad():
        weight.requires_grad_()
        y = native_product(x, weight, bias)
        with pytest.raises(BackendError, match="lavagna::skinny_linear has no derivative"):
            y.sum().backward()
        linear(x, weight, bias).sum().backward()
    assert weight.grad is not None


def test_it_is_an_operator_of_torch() -> None:
    x, weight, bias = operands(20, 7, 2)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    for given in (bias, None):
        torch.library.opcheck(torch.ops.lavagna.skinny_linear.default, (x, weight, given), test_utils=tests)
    compiled = torch.compile(linear, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, weight, bias), native_product(x, weight, bias))
