"""Models whose outputs or gradients depend on later tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .recurrence import Recurrence
from .twin import Twin


class NoMask(Decoder):
    def hidden(self, real: Tensor, queries: int) -> Tensor:
        return ~real[:, None, None]


class MaskOffByOne(Decoder):
    def hidden(self, real: Tensor, queries: int) -> Tensor:
        keys = real.shape[1]
        place = torch.arange(keys - queries, keys)[:, None]
        key = torch.arange(keys)
        return (key > place + 1) | (~real[:, None, None] & (key != place))


class NormOverTime(Decoder):
    def attention(self, x: Tensor, real: Tensor, cache: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        attended, cache = super().attention(x, real, cache)
        return attended / (1 + attended.abs().amax(1, keepdim=True)), cache


class LengthKnown(Decoder):
    """Positions are shares of the length."""

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return super().positions(real, cache) / (real.shape[1] if cache is None else 1)


class ChunkReadBeforeItsEnd(Recurrence):
    """Each token reads the memory at the end of its chunk of 16."""

    chunk = 16

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, after = super().read(x, state)
        if x.shape[1] <= self.chunk:
            return y, after
        ends = torch.arange(x.shape[1]) // self.chunk * self.chunk + self.chunk
        return y + 0.01 * y[:, ends.clamp(max=x.shape[1] - 1)], after


class LongChunkReadBeforeItsEnd(ChunkReadBeforeItsEnd):
    chunk = 256


class ConvolutionPaddedOnBothSides(Recurrence):
    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        whole = F.pad(torch.cat([tail[:, 1:], x], 1), (0, 0, 0, 1))
        c = sum(self.conv[i] * whole[:, i : i + x.shape[1]] for i in range(self.taps)) + self.conv_bias
        return F.silu(c), torch.cat([tail, x], 1)[:, x.shape[1] :].clone()


class _LooksAhead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient + 0.1 * gradient.roll(1, 1)


class GradientLooksAhead(Recurrence):
    def decay(self, c: Tensor) -> Tensor:
        return super().decay(_LooksAhead.apply(c))


TWINS = (
    Twin(NoMask, "future-leak"),
    Twin(MaskOffByOne, "future-leak"),
    Twin(NormOverTime, "future-leak"),
    Twin(LengthKnown, "future-leak"),
    Twin(ChunkReadBeforeItsEnd, "future-leak"),
    Twin(ConvolutionPaddedOnBothSides, "future-leak"),
    Twin(GradientLooksAhead, "future-leak"),
)

LONG = (Twin(LongChunkReadBeforeItsEnd, "future-leak"),)
