"""A sound recurrence in plain torch: gated linear attention behind a short convolution, reading vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 16


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
