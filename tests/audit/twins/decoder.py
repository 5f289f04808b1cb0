"""Sound softmax attention as people write it, in plain torch: a decoder that reads tokens."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCABULARY = 29
WIDTH = 16


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
