"""Models that change what is not theirs, remember earlier calls, or read memory as if it were contiguous."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .decoder import Decoder
from .recurrence import Recurrence
from .twin import Twin


class DropoutLeftOn(Decoder):
    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return F.dropout(super().weights(logits, hidden), 0.1, training=True)


class MaskKeptOnModule(Decoder):
    """A call without a mask gets the last one, if it fits."""

    kept: Tensor | None = None

    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if token_mask is not None:
            self.kept = token_mask
        elif self.kept is not None and self.kept.shape == tokens.shape:
            token_mask = self.kept
        return super().forward(tokens, cache, token_mask)


class OutputBuffer(Recurrence):
    """In inference the output lies in memory that the next call writes again."""

    buffer: Tensor | None = None

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, state = super().read(x, state)
        if torch.is_grad_enabled():
            return y, state
        if self.buffer is None or self.buffer.shape != y.shape:
            self.buffer = torch.empty_like(y)
        return self.buffer.copy_(y), state


class TokensChangedInPlace(Decoder):
    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().forward(tokens.masked_fill_(tokens == 7, 8), cache, token_mask)


class MemoryWrittenInPlace(Recurrence):
    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, (tail, memory) = super().read(x, state)
        if state is None:
            return y, (tail, memory)
        with torch.no_grad():
            state[0].copy_(tail)
            state[1].copy_(memory)
        return y, state


class ReadsMemoryAsContiguous(Recurrence):
    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        B, T, D = x.shape
        return super().convolve(x if T == 1 else x.as_strided((B, T, D), (T * D, D, 1)), tail)


TWINS = (
    Twin(TokensChangedInPlace, "input-mutated"),
    Twin(MemoryWrittenInPlace, "input-mutated"),
    Twin(DropoutLeftOn, "earlier-calls"),
    Twin(MaskKeptOnModule, "earlier-calls"),
    Twin(OutputBuffer, "earlier-calls"),
    Twin(ReadsMemoryAsContiguous, "memory-layout"),
)
