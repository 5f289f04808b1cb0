"""Packed sequences that read on from one another."""

from __future__ import annotations

import torch
from torch import Tensor

from .recurrence import Recurrence
from .twin import Twin


class BoundariesIgnored(Recurrence):
    """Sequences in one row read on from each other's memory."""

    def packed(self, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        _, states = super().packed(x, cu_seqlens)
        return self.read(x, None)[0], states


class TailCrossesBoundaries(Recurrence):
    """The memory is cleared at a boundary, the convolution's tail is not."""

    def packed(self, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        _, states = super().packed(x, cu_seqlens)
        tail, parts = self.start(x)[0], []
        for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            if stop > start:
                part, (tail, _) = self.read(x[:, start:stop], (tail, self.start(x)[1]))
                parts.append(part)
        return torch.cat(parts, 1), states


TWINS = (
    Twin(BoundariesIgnored, "packed"),
    Twin(TailCrossesBoundaries, "packed"),
)
