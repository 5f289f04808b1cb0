"""A model that raises where it should answer."""

from __future__ import annotations

from torch import Tensor

from .decoder import Decoder
from .twin import Twin


class FullBlocksOnly(Decoder):
    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if tokens.shape[1] > 16:
            tokens.view(tokens.shape[0], -1, 16)
        return super().forward(tokens, cache, token_mask)


TWINS = (Twin(FullBlocksOnly, "crash"),)
