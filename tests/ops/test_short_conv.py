"""What is special to short_conv; the contracts are in test_conformance.py."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError
from lavagna.ops import short_conv
from lavagna.ops.packing import Padding

ROWS = pytest.mark.parametrize("row", [("recurrent", "reference"), ("parallel", "torch")], ids=".".join)


def column(*numbers: float) -> Tensor:
    """[1, T, 1]."""
    return torch.tensor(numbers, dtype=torch.float64).reshape(1, -1, 1)


@ROWS
def test_two_tokens_by_hand(row: tuple[str, str]) -> None:
    """y_0 = 7 + 3·11 + 5·1 and y_1 = 7 + 3·1 + 5·2; the last weight meets the current token."""
    form, impl = row
    weight, bias = torch.tensor([[3.0, 5.0]]).double(), torch.tensor([7.0]).double()
    output, state = short_conv(column(1, 2), weight, bias, state=column(11), return_state=True, form=form, impl=impl)
    assert output.flatten().tolist() == [45, 20]
    assert state.tolist() == [[[2]]]
    output, state = short_conv(column(1, 2), weight, form=form, impl=impl)
    assert output.flatten().tolist() == [5, 13]
    assert state is None


@ROWS
def test_silu_by_hand(row: tuple[str, str]) -> None:
    form, impl = row
    weight = torch.tensor([[1.0]]).double()
    output, _ = short_conv(column(0, 1, -2), weight, activation="silu", form=form, impl=impl)
    expected = [0, 1 / (1 + math.exp(-1)), -2 / (1 + math.exp(2))]
    assert output.flatten().tolist() == pytest.approx(expected, rel=1e-15)


@ROWS
def test_gradients_by_hand(row: tuple[str, str]) -> None:
    """y = (3·11 + 5·1, 3·1 + 5·2), loss = y_0 + 10·y_1."""
    form, impl = row
    x, weight, state = column(1, 2), torch.tensor([[3.0, 5.0]]).double(), column(11)
    for tensor in (x, weight, state):
        tensor.requires_grad_()
    output, _ = short_conv(x, weight, state=state, form=form, impl=impl)
    (output * column(1, 10)).sum().backward()
    assert x.grad.flatten().tolist() == [5 + 30, 50]
    assert weight.grad.tolist() == [[11 + 10, 1 + 20]]
    assert state.grad.flatten().tolist() == [3]


@ROWS
def test_a_piece_shorter_than_the_state_keeps_what_came_before(row: tuple[str, str]) -> None:
    form, impl = row
    _, state = short_conv(
        column(4), torch.ones(1, 4).double(), state=column(1, 2, 3), return_state=True, form=form, impl=impl
    )
    assert state.flatten().tolist() == [2, 3, 4]


def test_each_channel_has_its_own_weights() -> None:
    x = torch.tensor([[[1.0, 10.0], [2.0, 20.0]]])
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    output, _ = short_conv(x, weight)
    assert output.tolist() == [[[2, 40], [5, 110]]]


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_it_is_the_convolution_of_torch_with_time_second(width: int) -> None:
    x, weight = torch.randn(2, 11, 5, dtype=torch.float64), torch.randn(5, width, dtype=torch.float64)
    expected = torch.nn.functional.conv1d(x.mT, weight[:, None], padding=width - 1, groups=5)[..., :11].mT
    torch.testing.assert_close(short_conv(x, weight).output, expected)


def test_padded_tokens_enter_neither_the_output_nor_the_state() -> None:
    """Padding on the left would leave its zeros, and with a bias more than zeros, to the tokens behind it."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 0], [0, 1, 1, 1, 0]]).bool()
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    weight, bias = torch.randn(2, 4, dtype=torch.float64), torch.randn(2, dtype=torch.float64)
    state = torch.randn(3, 3, 2, dtype=torch.float64)
    padding = Padding.of(mask)
    packed, final = short_conv(
        padding.pack(torch.where(mask[..., None], x, float("nan"))),
        weight,
        bias,
        activation="silu",
        state=state,
        return_state=True,
        cu_seqlens=padding.cu_seqlens,
    )
    output = padding.unpack(packed)
    assert not output[~mask].any()
    for b in range(3):
        alone, alone_state = short_conv(
            x[b, mask[b]][None], weight, bias, activation="silu", state=state[b : b + 1], return_state=True
        )
        torch.testing.assert_close(output[b, mask[b]], alone[0])
        torch.testing.assert_close(final[b], alone_state[0])


def test_an_unknown_activation() -> None:
    with pytest.raises(InputError, match=r"^short_conv: activation must be None or 'silu', got 'swish'$"):
        short_conv(torch.ones(1, 2, 3), torch.ones(3, 4), activation="swish")


def test_a_convolution_of_no_width() -> None:
    with pytest.raises(ShapeError, match="W of at least 1, got W=0"):
        short_conv(torch.ones(1, 2, 3), torch.ones(3, 0))


def test_a_state_of_another_width() -> None:
    with pytest.raises(ShapeError, match=r"^short_conv: state must have shape \[1, 3, D=3\], got \[1, 4, 3\]$"):
        short_conv(torch.ones(1, 2, 3), torch.ones(3, 4), state=torch.ones(1, 4, 3))
