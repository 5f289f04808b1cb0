"""Backward passes that do not fit their forward passes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .recurrence import Recurrence
from .twin import Twin


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sigmoid()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return gradient * x.sigmoid() * (1 - x.sigmoid()) ** 2


class WrongBackward(Recurrence):
    def decay(self, c: Tensor) -> Tensor:
        return _HalfGradient.apply(self.gate(c) + 2)


class _ReadsFlat(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        flat = torch.zeros(gradient.numel(), dtype=gradient.dtype)
        seen = gradient.untyped_storage().nbytes() // gradient.element_size()
        flat[:seen] = gradient.as_strided((seen,), (1,), 0)[: gradient.numel()]
        return flat.view(gradient.shape)


class ReadsExpandedGradientFlat(Recurrence):
    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = super().read(x, state)
        return _ReadsFlat.apply(y.contiguous()), state


TWINS = (
    Twin(WrongBackward, "gradients"),
    Twin(ReadsExpandedGradientFlat, "gradients"),
)
