"""Sums and quotients that overflow, lose digits or have no gradient."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .recurrence import Recurrence
from .twin import Twin


class PlainExponentials(Decoder):
    """A softmax that does not subtract the maximum."""

    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        e = logits.exp().masked_fill(hidden, 0)
        return e / e.sum(-1, keepdim=True)


class StateInHalfPrecision(Recurrence):
    """The memory is rounded at every token, where the model computes in float32 or less."""

    def step(self, memory: Tensor, decay: Tensor, write: Tensor) -> Tensor:
        memory = super().step(memory, decay, write)
        return memory if memory.dtype == torch.float64 else memory.bfloat16().to(memory.dtype)


class DifferencesOfSums(Recurrence):
    """The decay is a quotient of exponentials of long sums: it overflows, or is lost."""

    def decay(self, c: Tensor) -> Tensor:
        total = (100 * F.logsigmoid(20 * self.gate(c) + 4)).cumsum(1)
        return torch.exp(total - F.pad(total, (0, 0, 1, -1)))


class RootOfZero(Recurrence):
    """Vectors are divided by their length; at zero that has no gradient."""

    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        c, tail = super().convolve(x, tail)
        return c / (1 + (x * self.conv[0]).square().sum(-1, keepdim=True).sqrt()), tail


TWINS = (
    Twin(PlainExponentials, "non-finite"),
    Twin(RootOfZero, "non-finite"),
    Twin(StateInHalfPrecision, "precision"),
    Twin(DifferencesOfSums, "precision"),
)
