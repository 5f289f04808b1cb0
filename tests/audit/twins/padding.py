"""Padding that is read, or that changes the state."""

from __future__ import annotations

import torch
from torch import Tensor

from .decoder import Decoder
from .recurrence import Recurrence
from .twin import Twin


class MaskIgnored(Decoder):
    def hidden(self, real: Tensor, queries: int) -> Tensor:
        return super().hidden(torch.ones_like(real), queries)


class PositionsOfPadding(Decoder):
    """Absolute positions count padding on the left."""

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        if cache is not None:
            cache = (*cache[:2], torch.ones_like(cache[2]))
        return super().positions(torch.ones_like(real), cache)


class BiasInPadding(Recurrence):
    """Padding is zeroed before the convolution alone: its bias, and what stands beside it, is written."""

    def padded(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, token_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.read(x * token_mask[..., None], state)


class StateOfPadding(Recurrence):
    """Outputs are right; the state is that at the last place of the batch."""

    def padded(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, token_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, _ = super().padded(x, state, token_mask)
        return y, self.read(x * token_mask[..., None], state)[1]


TWINS = (
    Twin(MaskIgnored, "padding"),
    Twin(PositionsOfPadding, "padding"),
    Twin(BiasInPadding, "padding"),
    Twin(StateOfPadding, "state-after-padding"),
)
