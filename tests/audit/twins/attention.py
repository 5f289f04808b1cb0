"""Attention with a wrong softmax, mask or scale, or without positions."""

from __future__ import annotations

import torch
from torch import Tensor

from .decoder import Decoder, FusedDecoder
from .twin import Twin


class NoScale(Decoder):
    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return torch.einsum("bhtk,bhsk->bhts", q, k)


class ScaledTwice(Decoder):
    """Multiplied where it should be divided, queries before the product."""

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return (q * self.head_dim**0.5) @ k.transpose(-1, -2) / 2


class FusedWithoutScale(FusedDecoder):
    fused_scale = 1.0


class MaskAfterSoftmax(Decoder):
    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.softmax(-1).masked_fill(hidden, 0)


class MaskAfterByProduct(Decoder):
    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.softmax(-1) * (~hidden).to(logits.dtype)


class SoftmaxOverQueries(Decoder):
    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, -1e9).softmax(-2)


class NoPositions(Decoder):
    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return torch.zeros(1)


TWINS = (
    Twin(SoftmaxOverQueries, "softmax-over-queries"),
    Twin(MaskAfterSoftmax, "mask-after-softmax"),
    Twin(MaskAfterByProduct, "mask-after-softmax"),
    Twin(NoScale, "scale"),
    Twin(ScaledTwice, "scale"),
    Twin(FusedWithoutScale, "scale"),
    Twin(NoPositions, "no-position"),
)
