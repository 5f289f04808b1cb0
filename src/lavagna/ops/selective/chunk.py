"""The selective scan chunk by chunk: states are kept at the boundaries of chunks and nowhere else.

A state is held as [G, N, D/G], channels last, so that x and Δ broadcast along N and every pass runs over
long contiguous rows. Buffers of one chunk are made once and used again for each chunk, backward included.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .layout import by_group, groups_of

__all__ = ["CHUNK", "scan"]

#: Tokens a chunk. On one core, D 512 to 1536, N 16, the times at 16, 32 and 64 are the same within noise; near
#: T = 1000, 32 balances the T/C states that are kept against the C of the chunk at work.
CHUNK = 32

#: Elements of a chunk's states, 2 MB in float32: with more, batch 8 at D 1024 took nearly twice the time.
CACHED = 2**19


def scan(
    x: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, *, state: Tensor, chunk_size: int | None
) -> tuple[Tensor, Tensor]:
    """x, delta [B, T, D], A [D, N], state [B, D, N] -> y [B, T, D], state."""
    if x.numel() == 0:
        return x, state
    groups = groups_of(B, C)
    size = min(chunk_size or CHUNK, x.shape[1])
    A = A.unflatten(0, (groups, -1)).mT.contiguous()
    arguments = (
        x.unflatten(2, (groups, -1)).unsqueeze(3),
        delta.unflatten(2, (groups, -1)).unsqueeze(3),
        by_group(B, groups).mT,
        by_group(C, groups).mT,
        state.unflatten(1, (groups, -1)).mT,
    )
    differentiate = torch.is_grad_enabled() and any(t.requires_grad for t in (A, *arguments))
    run: Callable[..., tuple[Tensor, Tensor]] = _Scan.apply if differentiate else _forward

    # On a CPU a few rows of the batch at a time, so that their chunk stays in cache.
    rows = max(CACHED // max(size * A.numel(), 1), 1) if x.device.type == "cpu" else len(x)
    if rows >= len(x):
        y, final = run(A, *arguments, size)
    else:
        blocks = -(-len(x) // rows)
        parts = [t.split(rows) if len(t) == len(x) else (t,) * blocks for t in arguments]
        results = [run(A, *part, size) for part in zip(*parts, strict=True)]
        y, final = map(torch.cat, zip(*results, strict=True))
    return y.flatten(2), final.mT.flatten(1, 2).contiguous()


def _forward(
    A: Tensor,
    x: Tensor,
    delta: Tensor,
    B: Tensor,
    C: Tensor,
    state: Tensor,
    size: int,
    boundaries: list[Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run all chunks; the state before each chunk is appended to `boundaries`."""
    work = _Chunk(A, state.shape, size)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    for start in range(0, x.shape[1], size):
        if boundaries is not None:
            boundaries.append(state)
        x_c, delta_c, B_c, C_c, y_c = (_tokens(t, start, size) for t in (x, delta, B, C, y))
        _, states = work.run(delta_c, delta_c * x_c, B_c, state)
        y_c.copy_(_sum_over_states(C_c, states[1:]))
        state = states[-1].clone()
    return y, state


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, A: Tensor, x: Tensor, delta: Tensor, B: Tensor, C: Tensor, state: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        boundaries: list[Tensor] = []
        y, final = _forward(A, x, delta, B, C, state, size, boundaries)
        ctx.save_for_backward(A, x, delta, B, C, *boundaries)
        ctx.size = size
        return y, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, d_state: Tensor) -> tuple[Tensor | None, ...]:
        """Chunks in reverse order; each is run again from its boundary, then swept backwards.

        With a_t = exp(Δ_t A) and u_t = Δ_t x_t the adjoint of h_t is g_t = C_t ∘ dy_t + a_{t+1} ∘ g_{t+1}, and
            dC_t = Σ_d dy_t h_t,  dB_t = Σ_d u_t g_t,  du_t = Σ_n B_t g_t,  d(Δ_t A) = a_t ∘ h_{t−1} ∘ g_t.
        """
        A, x, delta, B, C, *boundaries = ctx.saved_tensors
        size = ctx.size
        work = _Chunk(A, d_state.shape, size)
        adjoints = torch.empty_like(work.decays)
        dx, d_delta = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, delta))
        dA, dB, dC = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (A, B, C))
        for i in reversed(range(len(boundaries))):
            x_c, delta_c, B_c, C_c, dy_c, dx_c, d_delta_c, dB_c, dC_c = (
                _tokens(t, i * size, size) for t in (x, delta, B, C, dy, dx, d_delta, dB, dC)
            )
            u_c = delta_c * x_c
            decays, states = work.run(delta_c, u_c, B_c, boundaries[i])

            g = torch.mul(C_c, dy_c, out=adjoints[: len(decays)])
            rows, decay_rows = g.unbind(0), decays.unbind(0)
            rows[-1].add_(d_state)
            for before, decay, after in zip(rows[-2::-1], decay_rows[::-1], rows[::-1], strict=False):
                before.addcmul_(decay, after)
            d_state = decay_rows[0] * rows[0]

            dC_c += _sum_over_channels(dy_c, states[1:], like=dC_c)
            dB_c += _sum_over_channels(u_c, g, like=dB_c)
            du_c = _sum_over_states(B_c, g)
            d_exponent = decays.mul_(states[:-1]).mul_(g)
            dA += torch.mul(d_exponent, delta_c, out=g).sum((0, 1))
            dx_c.copy_(du_c * delta_c)
            d_delta_c.copy_(torch.addcmul(d_exponent.mul_(A).sum(-2, keepdim=True), du_c, x_c))
        return dA, dx, d_delta, dB, dC, d_state, None


class _Chunk:
    """The buffers of one chunk, time first: decays [C, B, G, N, D/G] and states [C+1, B, G, N, D/G]."""

    def __init__(self, A: Tensor, shape: torch.Size, size: int) -> None:
        self.log2_A = A * math.log2(math.e)  # torch's exp2 takes a third of the time of its exp
        self.decays = A.new_empty(size, *shape)
        self.states = A.new_empty(size + 1, *shape)

    def run(self, delta: Tensor, u: Tensor, B: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Decays, and the states before the first and after each token.

        One token after the other, each step over all B·D·N elements: what every token needs of its own is made
        for the whole chunk first, and the step is one multiply-add in place. A tree over the chunk's tokens
        would take two passes more over it.
        """
        tokens = len(delta)
        decays, states = self.decays[:tokens], self.states[: tokens + 1]
        torch.exp2(torch.mul(delta, self.log2_A, out=decays), out=decays)
        torch.mul(B, u, out=states[1:])
        states[0] = state
        rows = states.unbind(0)
        for before, decay, after in zip(rows, decays.unbind(0), rows[1:], strict=False):
            after.addcmul_(decay, before)
        return decays, states


def _tokens(tensor: Tensor, start: int, size: int) -> Tensor:
    """Some tokens of [B, T, ...], time first; what is constant over time, [1, 1, ...], stays whole."""
    rows = tensor.transpose(0, 1)
    return rows if len(rows) == 1 else rows[start : start + size]


def _sum_over_states(coefficient: Tensor, states: Tensor) -> Tensor:
    """Σ_n c h: [C, B, G, 1, D/G]."""
    if coefficient.shape[-1] == 1:
        return torch.matmul(coefficient.mT, states)
    return (coefficient * states).sum(-2, keepdim=True)


def _sum_over_channels(values: Tensor, states: Tensor, *, like: Tensor) -> Tensor:
    """Gradient of the coefficient in :func:`_sum_over_states`, of the shape of `like`."""
    if like.shape[-1] == 1:
        # Made contiguous: a batch whose strides go back and forth takes torch's product off its fast path.
        return torch.matmul(values.contiguous(), states.mT).mT.sum_to_size(like.shape)
    return (states * values).sum_to_size(like.shape)
