"""States that do not hold all that a next token needs, or that nobody can copy, reorder or use twice."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .decoder import Decoder
from .recurrence import Recurrence
from .twin import Twin


class StepForgetsPosition(Decoder):
    """Positions begin anew in a step of one token."""

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return super().positions(real, None if real.shape[1] == 1 else cache)


class MaskOfFirstKeys(Decoder):
    """Several tokens behind a cache get the causal mask of the first ones."""

    def hidden(self, real: Tensor, queries: int) -> Tensor:
        hidden = super().hidden(real, queries)
        if 1 < queries < real.shape[1]:
            hidden = torch.arange(real.shape[1]) > torch.arange(queries)[:, None]
        return hidden.expand(real.shape[0], 1, queries, real.shape[1])


class RowsFolded(Decoder):
    """The cache keeps batch and heads in one axis, so that nobody can reorder its rows."""

    def attention(self, x: Tensor, real: Tensor, cache: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        if cache is not None:
            rows = x.shape[0]
            unfolded = (c.reshape(rows, 5, -1, c.shape[-1])[:, : self.groups] for c in cache[:2])
            cache = (*unfolded, cache[2])
        attended, (k, v, real) = super().attention(x, real, cache)
        return attended, (*(c.expand(-1, 5, -1, -1).flatten(0, 1) for c in (k, v)), real)


class CountsTwice(nn.Module):
    """The state is a dict, and the number of tokens in it is counted up in place."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Decoder()

    def forward(self, tokens: Tensor, state: dict[str, Any] | None = None) -> tuple[Tensor, dict[str, Any]]:
        state = {"seen": 0, "cache": None} if state is None else state
        logits, cache = self.inner(tokens, state["cache"])
        logits = logits + torch.sin(torch.arange(tokens.shape[1]) + state["seen"]).to(logits.dtype)[:, None]
        state["seen"] += tokens.shape[1]
        return logits, {"seen": state["seen"], "cache": cache}


class LongChunksFade(Recurrence):
    """A prefill of more than one chunk of 256 fades at the end of each."""

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        parts = []
        for chunk in x.split(256, 1):
            part, (tail, memory) = super().read(chunk, state)
            parts.append(part)
            state = (tail, 0.5 * memory if x.shape[1] > 256 else memory)
        assert state is not None
        return torch.cat(parts, 1), state


class ConvolutionForgetsItsTail(Recurrence):
    """Every call begins with an empty tail."""

    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        return super().convolve(x, torch.zeros_like(tail))


class SeveralStartFromZero(Recurrence):
    """Only a call with one token reads on from the memory."""

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is not None and x.shape[1] > 1:
            state = (state[0], torch.zeros_like(state[1]))
        return super().read(x, state)


class StateOnModule(Recurrence):
    """A part of the state stays on the module; a new sequence clears it."""

    memory: Tensor | None = None

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None or self.memory is None or self.memory.shape[0] != x.shape[0]:
            self.memory = self.start(x)[1]
        tail = self.start(x)[0] if state is None else state[0]
        y, (tail, self.memory) = super().read(x, (tail, self.memory))
        return y, (tail, torch.zeros_like(self.memory))


TWINS = (
    Twin(StateOnModule, "interleaving"),
    Twin(StepForgetsPosition, "stepping"),
    Twin(ConvolutionForgetsItsTail, "stepping"),
    Twin(MaskOfFirstKeys, "continuing"),
    Twin(SeveralStartFromZero, "continuing"),
    Twin(RowsFolded, "reordering"),
    Twin(CountsTwice, "reusing"),
)

LONG = (Twin(LongChunksFade, "stepping"),)
