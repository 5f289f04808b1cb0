"""RMSNorm with a gate: no recurrence, but beside every one of them."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lavagna.ops.dispatch import automatic
from lavagna.ops.rms_norm import rms_norm

from ..measure import Ratio, Side
from ..row import Row, shown

SHAPE = (2, 2048, 4, 192)
WORDS = "2 × 2048 tokens of 4 heads of 192, SiLU gate, 1 thread"


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and gate."""
    generator = torch.Generator().manual_seed(0)
    x, weight, gate = (torch.randn(shape, generator=generator) for shape in (SHAPE, SHAPE[-1:], SHAPE))
    return x, weight, gate


def forward(impl: str) -> Side:
    tensors = drawn()

    def run() -> Tensor:
        with automatic(impl), torch.no_grad():
            return rms_norm(*tensors)

    return Side(run)


def forward_backward(impl: str) -> Side:
    """The call, and the gradients of x, weight and gate from one of the output."""
    tensors = tuple(tensor.requires_grad_() for tensor in drawn())
    upstream = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1))

    def run() -> tuple[Tensor, ...]:
        with automatic(impl):
            return torch.autograd.grad(rms_norm(*tensors), tensors, upstream)

    return Side(run)


ROWS = (
    Row(
        "norm-portable",
        f"rms_norm forward, {WORDS}",
        "our torch path",
        shown("×"),
        Ratio(partial(forward, "cpu"), partial(forward, "torch")),
    ),
    Row(
        "norm-backward-portable",
        f"rms_norm forward + backward, {WORDS}",
        "our torch path",
        shown("×"),
        Ratio(partial(forward_backward, "cpu"), partial(forward_backward, "torch")),
    ),
)
