"""Linear layers of a few tokens: no recurrence, but what generation spends its time in."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dispatch import automatic_is_native
from .library import address, define, kernel

__all__ = ["linear"]

#: rows of x that the kernel takes
ROWS = 4


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """torch's linear, at the speed of memory where x has few rows and autograd does not record.

        y = x Wᵀ + b

    Args:
        x: [..., I].
        weight: [O, I].
        bias: [O].

    Returns:
        y [..., O] in x's dtype.

    Numerics:
        Up to four rows of float32 or bfloat16 on the CPU: sums in float32, in an order that depends on I alone, so
        that neither threads nor other rows change a bit. Everything else is torch's.
    """
    if torch.is_grad_enabled() or not fits(x, weight, bias):
        return F.linear(x, weight, bias)
    return _forward(x, weight, bias)


def fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel can take this product in torch's place."""
    dtype = weight.dtype
    return (
        type(weight) in (Tensor, nn.Parameter)  # others may hold their numbers in another way
        and weight.is_contiguous()
        and x.dtype is dtype
        and (dtype is torch.float32 or dtype is torch.bfloat16)
        and (bias is None or (bias.dtype is dtype and bias.is_cpu and bias.shape == weight.shape[:1]))
        and x.is_cpu
        and weight.is_cpu
        and weight.ndim == 2
        and 0 < x.numel() <= ROWS * weight.shape[1]
        and x.shape[-1] == weight.shape[1]
        and not torch.is_autocast_enabled("cpu")
        and automatic_is_native()
    )


def _run(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    outputs, inputs = weight.shape
    if x.numel() > inputs or x.stride(-1) != 1:
        x = x.contiguous()
    bias = None if bias is None else bias.contiguous()
    y = x.new_empty(*x.shape[:-1], outputs)
    kernel("skinny_linear", x.dtype)(
        torch.get_num_threads(),
        x.numel() // inputs,
        inputs,
        outputs,
        x.data_ptr(),
        inputs,
        weight.data_ptr(),
        address(bias),
        y.data_ptr(),
    )
    return y


_forward = define(
    "skinny_linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    _run,
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
)
