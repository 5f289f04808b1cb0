"""Two sound models as people write them, and broken twins of both: each has one planted bug.

The sound ones are plain torch, without anything of this package: a decoder of softmax attention that reads tokens,
and a recurrence of gated linear attention behind a short convolution that reads vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["LONG", "SOUND", "TWINS", "Decoder", "Recurrence", "Twin"]

VOCABULARY = 29
WIDTH = 16


# Sound: softmax attention -----------------------------------------------------------------------------------


class Decoder(nn.Module):
    """Tokens [B, T] -> (logits [B, T, V], cache of keys, values, token mask), reading on from a cache."""

    heads = 2
    groups = 1
    head_dim = 16

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.q_proj = nn.Linear(WIDTH, self.heads * self.head_dim)
        self.k_proj = nn.Linear(WIDTH, self.groups * self.head_dim)
        self.v_proj = nn.Linear(WIDTH, self.groups * self.head_dim)
        self.out_proj = nn.Linear(self.heads * self.head_dim, WIDTH)
        self.mlp = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 24), nn.ReLU(), nn.Linear(24, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        real = torch.ones_like(tokens, dtype=torch.bool) if token_mask is None else token_mask
        x = self.embedding(tokens)
        x = x + self.positions(real, cache).to(x.dtype)
        attended, cache = self.attention(self.norm(x), real, cache)
        x = x + attended
        return self.head(x + self.mlp(x)), cache

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        place = real.cumsum(1) - 1 + (0 if cache is None else cache[2].sum(1, keepdim=True))
        angle = place[..., None] * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(100.0) / WIDTH))
        return torch.cat([angle.sin(), angle.cos()], -1)

    def attention(self, x: Tensor, real: Tensor, cache: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        if cache is not None:
            k, v, real = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2), torch.cat([cache[2], real], 1)
        logits = self.logits(q, self.repeat(k))
        o = self.weights(logits, self.hidden(real, x.shape[1])) @ self.repeat(v)
        return self.out_proj(self.join(o)), (k, v, real)

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def join(self, o: Tensor) -> Tensor:
        return o.transpose(1, 2).flatten(2)

    def repeat(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.heads // self.groups, 1)

    def logits(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.transpose(-1, -2) * self.head_dim**-0.5

    def hidden(self, real: Tensor, queries: int) -> Tensor:
        """Keys that a query does not see: [B, 1, T, S]. A padded query sees itself, rather than nothing."""
        keys = real.shape[1]
        place = torch.arange(keys - queries, keys)[:, None]
        key = torch.arange(keys)
        return (key > place) | (~real[:, None, None] & (key != place))

    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        return logits.masked_fill(hidden, -torch.inf).softmax(-1)


class GroupedDecoder(Decoder):
    """Four heads, two groups of keys and values."""

    heads = 4
    groups = 2


class FusedDecoder(Decoder):
    """The same by torch's own attention."""

    groups = 2
    fused_scale: float | None = None

    def attention(self, x: Tensor, real: Tensor, cache: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        q, k, v = self.split(self.q_proj(x)), self.split(self.k_proj(x)), self.split(self.v_proj(x))
        if cache is not None:
            k, v, real = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2), torch.cat([cache[2], real], 1)
        seen = ~self.hidden(real, x.shape[1])
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.fused_scale)
        return self.out_proj(self.join(o)), (k, v, real)


# Sound: a recurrence ----------------------------------------------------------------------------------------


class Recurrence(nn.Module):
    """Vectors [B, T, D] -> ([B, T, D], state): S ← a S + k vᵀ, o = Sᵀ q, behind a convolution of width 3."""

    taps = 3

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Parameter(0.5 * torch.randn(self.taps, WIDTH))
        self.conv_bias = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.qkv = nn.Linear(WIDTH, 3 * 8)
        self.gate = nn.Linear(WIDTH, 1)
        self.out = nn.Linear(8, WIDTH)

    def forward(
        self,
        x: Tensor,
        state: tuple[Tensor, Tensor] | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if cu_seqlens is not None:
            return self.packed(x, cu_seqlens)
        if token_mask is not None:
            return self.padded(x, state, token_mask)
        return self.read(x, state)

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        tail, memory = self.start(x) if state is None else state
        c, tail = self.convolve(x, tail)
        q, k, v = self.qkv(c).chunk(3, -1)
        decay = self.decay(c)
        outputs = []
        for t in range(x.shape[1]):
            memory = self.step(memory, decay[:, t, :, None], k[:, t, :, None] * v[:, t, None])
            outputs.append((q[:, t, None] @ memory)[:, 0])
        return self.out(torch.stack(outputs, 1)), (tail, memory)

    def start(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(x.shape[0], self.taps - 1, WIDTH), x.new_zeros(x.shape[0], 8, 8)

    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat([tail, x], 1)
        c = sum(self.conv[i] * whole[:, i : i + x.shape[1]] for i in range(self.taps)) + self.conv_bias
        return F.silu(c), whole[:, x.shape[1] :].clone()

    def decay(self, c: Tensor) -> Tensor:
        return torch.sigmoid(self.gate(c) + 2)

    def step(self, memory: Tensor, decay: Tensor, write: Tensor) -> Tensor:
        return decay * memory + write

    def padded(
        self, x: Tensor, state: tuple[Tensor, Tensor] | None, token_mask: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Each row by itself, real tokens only."""
        y, tails, memories = torch.zeros_like(x), [], []
        for row, mask in enumerate(token_mask):
            before = None if state is None else (state[0][row : row + 1], state[1][row : row + 1])
            output, (tail, memory) = self.read(x[row : row + 1, mask], before)
            y[row, mask] = output[0]
            tails.append(tail)
            memories.append(memory)
        return y, (torch.cat(tails), torch.cat(memories))

    def packed(self, x: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        parts, states = [], []
        for start, stop in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
            if stop > start:
                part, state = self.read(x[:, start:stop], None)
                parts.append(part)
            else:
                state = self.start(x)
            states.append(state)
        return torch.cat(parts, 1), (torch.cat([s[0] for s in states]), torch.cat([s[1] for s in states]))


# Broken: attention ------------------------------------------------------------------------------------------


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


class SplitWithoutTranspose(Decoder):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, x.shape[1], self.head_dim)

    def join(self, o: Tensor) -> Tensor:
        return o.reshape(o.shape[0], o.shape[2], -1)


class JoinedWithoutTranspose(Decoder):
    def join(self, o: Tensor) -> Tensor:
        return o.reshape(o.shape[0], o.shape[2], -1)


class GroupsInOtherOrder(GroupedDecoder):
    def repeat(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.heads // self.groups, 1, 1)


class NoPositions(Decoder):
    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return torch.zeros(1)


class MaskIgnored(Decoder):
    def hidden(self, real: Tensor, queries: int) -> Tensor:
        return super().hidden(torch.ones_like(real), queries)


class PositionsOfPadding(Decoder):
    """Absolute positions count padding on the left."""

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        if cache is not None:
            cache = (*cache[:2], torch.ones_like(cache[2]))
        return super().positions(torch.ones_like(real), cache)


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


class MeanOverBatch(Decoder):
    def attention(self, x: Tensor, real: Tensor, cache: tuple[Tensor, ...] | None) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().attention(x - 0.1 * x.mean(0, keepdim=True), real, cache)


class TokensChangedInPlace(Decoder):
    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        return super().forward(tokens.masked_fill_(tokens == 7, 8), cache, token_mask)


class PlainExponentials(Decoder):
    """A softmax that does not subtract the maximum."""

    def weights(self, logits: Tensor, hidden: Tensor) -> Tensor:
        e = logits.exp().masked_fill(hidden, 0)
        return e / e.sum(-1, keepdim=True)


class UnusedProjection(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)


class DetachedBias(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(WIDTH))

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return super().positions(real, cache) + self.offset.detach()


class FullBlocksOnly(Decoder):
    def forward(
        self, tokens: Tensor, cache: tuple[Tensor, ...] | None = None, token_mask: Tensor | None = None
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        if tokens.shape[1] > 16:
            tokens.view(tokens.shape[0], -1, 16)
        return super().forward(tokens, cache, token_mask)


# Broken: the recurrence -------------------------------------------------------------------------------------


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


class StateOnModule(Recurrence):
    """A part of the state stays on the module; a new sequence clears it."""

    memory: Tensor | None = None

    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None or self.memory is None or self.memory.shape[0] != x.shape[0]:
            self.memory = self.start(x)[1]
        tail = self.start(x)[0] if state is None else state[0]
        y, (tail, self.memory) = super().read(x, (tail, self.memory))
        return y, (tail, torch.zeros_like(self.memory))


class MemoryWrittenInPlace(Recurrence):
    def read(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        y, (tail, memory) = super().read(x, state)
        if state is None:
            return y, (tail, memory)
        with torch.no_grad():
            state[0].copy_(tail)
            state[1].copy_(memory)
        return y, state


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


class ReadsMemoryAsContiguous(Recurrence):
    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        B, T, D = x.shape
        return super().convolve(x if T == 1 else x.as_strided((B, T, D), (T * D, D, 1)), tail)


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


class KeepsEverything(Recurrence):
    """A view of all it has read stands in for the last two tokens."""

    def convolve(self, x: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
        c, _ = super().convolve(x, tail)
        whole = tail._base if tail._base is not None else tail
        whole = torch.cat([whole, x], 1)
        return c, whole[:, -self.taps + 1 :]


# The table --------------------------------------------------------------------------------------------------


class Twin(NamedTuple):
    """A broken model and the trap that it fell into."""

    make: Callable[[], nn.Module]
    trap: str

    @property
    def name(self) -> str:
        return self.make.__name__


#: sound models, none of which may fail
SOUND: tuple[Callable[[], nn.Module], ...] = (Decoder, GroupedDecoder, FusedDecoder, Recurrence)

TWINS: tuple[Twin, ...] = (
    Twin(FullBlocksOnly, "crash"),
    Twin(TokensChangedInPlace, "input-mutated"),
    Twin(MemoryWrittenInPlace, "input-mutated"),
    Twin(DropoutLeftOn, "earlier-calls"),
    Twin(MaskKeptOnModule, "earlier-calls"),
    Twin(OutputBuffer, "earlier-calls"),
    Twin(ReadsMemoryAsContiguous, "memory-layout"),
    Twin(MeanOverBatch, "neighbours"),
    Twin(SoftmaxOverQueries, "softmax-over-queries"),
    Twin(MaskAfterSoftmax, "mask-after-softmax"),
    Twin(MaskAfterByProduct, "mask-after-softmax"),
    Twin(SplitWithoutTranspose, "heads"),
    Twin(JoinedWithoutTranspose, "heads"),
    Twin(GroupsInOtherOrder, "heads"),
    Twin(NoScale, "scale"),
    Twin(ScaledTwice, "scale"),
    Twin(FusedWithoutScale, "scale"),
    Twin(NoPositions, "no-position"),
    Twin(NoMask, "future-leak"),
    Twin(MaskOffByOne, "future-leak"),
    Twin(NormOverTime, "future-leak"),
    Twin(LengthKnown, "future-leak"),
    Twin(ChunkReadBeforeItsEnd, "future-leak"),
    Twin(ConvolutionPaddedOnBothSides, "future-leak"),
    Twin(GradientLooksAhead, "future-leak"),
    Twin(MaskIgnored, "padding"),
    Twin(PositionsOfPadding, "padding"),
    Twin(BiasInPadding, "padding"),
    Twin(StateOfPadding, "state-after-padding"),
    Twin(StateOnModule, "interleaving"),
    Twin(StepForgetsPosition, "stepping"),
    Twin(ConvolutionForgetsItsTail, "stepping"),
    Twin(MaskOfFirstKeys, "continuing"),
    Twin(SeveralStartFromZero, "continuing"),
    Twin(RowsFolded, "reordering"),
    Twin(CountsTwice, "reusing"),
    Twin(BoundariesIgnored, "packed"),
    Twin(TailCrossesBoundaries, "packed"),
    Twin(UnusedProjection, "untrained"),
    Twin(DetachedBias, "untrained"),
    Twin(WrongBackward, "gradients"),
    Twin(ReadsExpandedGradientFlat, "gradients"),
    Twin(PlainExponentials, "non-finite"),
    Twin(RootOfZero, "non-finite"),
    Twin(StateInHalfPrecision, "precision"),
    Twin(DifferencesOfSums, "precision"),
    Twin(KeepsEverything, "state-grows"),
)

#: what shows behind a chunk of 256 alone
LONG: tuple[Twin, ...] = (
    Twin(LongChunkReadBeforeItsEnd, "future-leak"),
    Twin(LongChunksFade, "stepping"),
)
