"""Positions of tokens, and rotary positions in queries and keys."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from .precision import wide

__all__ = ["Position", "positions", "rotate"]

Position = Literal["rotary", "none"]


def positions(x: Tensor, seen: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    """How many tokens of its sequence came before each token, and how many each row has read in the end.

    Args:
        x: [B, T, ...], only its shape and device are read.
        seen: int64 [B] (or [M] of packed sequences), tokens read by earlier calls; None for zeros.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.

    Returns:
        int64 [B, T], and int64 [B] (or [M]).
    """
    index = torch.arange(x.shape[1], device=x.device)
    rows = x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1
    if seen is None:
        seen = torch.zeros(rows, dtype=torch.int64, device=x.device)
    if cu_seqlens is None:
        return seen[:, None] + index, seen + x.shape[1]
    lengths = cu_seqlens.diff().to(torch.int64)
    return (index + (seen - cu_seqlens[:-1]).repeat_interleave(lengths))[None], seen + lengths


def rotate(x: Tensor, position: Tensor, *, theta: float, size: int) -> Tensor:
    """Turn pairs of channels by angles that grow with the position, so that q · k depends on the distance alone.

        (x_i, x_{i+size/2}) turned by position · θ^(−2i/size),  i < size/2

    Args:
        x: [B, T, H, K].
        position: int64 [B, T].
        theta: θ, the base of the wavelengths.
        size: how many of the K channels are turned, the first ones; even.

    Returns:
        [B, T, H, K] in x's dtype.

    Numerics:
        Angles, sine and cosine in float32 (float64 if x is).

    Source:
        Su et al. 2021, eq. 34, with the pairing of GPT-NeoX and Llama (first half with second half).
    """
    turned, rest = wide(x).split([size, x.shape[-1] - size], -1)
    exponent = torch.arange(0, size, 2, device=x.device, dtype=turned.dtype) / size
    angle = position[..., None, None].to(turned.dtype) * theta**-exponent
    cos, sin = angle.cos(), angle.sin()
    a, b = turned.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1).to(x.dtype)
