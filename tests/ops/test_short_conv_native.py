"""What the native short convolution promises beside the contracts: a step in place."""

from __future__ import annotations

import pytest
import torch

from lavagna.errors import BackendError
from lavagna.ops.conv import cpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_the_step_in_place_is_the_step(width: int, dtype: torch.dtype, silu: bool, bias: bool) -> None:
    wide = torch.randn(3, 1, 77, dtype=dtype)
    x, weight = wide[:, :, 5:46], torch.randn(41, width, dtype=dtype)
    b = torch.randn(41, dtype=dtype) if bias else None
    start = torch.randn(3, width - 1, 41, dtype=dtype)
    expected, tail = cpu.convolve(x, weight, b, activation="silu" if silu else None, state=start, bounds=None)
    state = start.clone()
    output = cpu.step_(state, x, weight, b, silu)
    assert torch.equal(output, expected)
    assert torch.equal(state, tail)
    torch.library.opcheck(torch.ops.lavagna.short_conv_step_.default, (start, x.contiguous(), weight, b, silu))


def test_the_step_in_place_needs_a_contiguous_state() -> None:
    state = torch.randn(2, 5, 3).mT
    with pytest.raises(BackendError, match="short_conv_step_ writes on a contiguous state"):
        cpu.step_(state, torch.randn(2, 1, 5), torch.randn(5, 4), None, True)
