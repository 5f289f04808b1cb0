"""short_conv over all tokens at once: W shifted products over rows that begin with their state."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["convolve"]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None,
    state: Tensor,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], weight [D, W], state [B, W-1, D] or one per packed sequence -> y [B, T, D], state."""
    width = weight.shape[1]
    if bounds is None:
        rows = torch.cat([state, x], 1)
        y = _shifted_products(rows, weight, bias, x.shape[1])
        tail = rows[:, x.shape[1] :].clone()  # a view would keep every token in memory
    else:
        # Each sequence stands behind its own state in one long row, so that no window crosses a boundary.
        pieces = [part for m, (a, b) in enumerate(pairwise(bounds)) for part in (state[m], x[0, a:b])]
        row = torch.cat([*pieces, x.new_zeros(0, x.shape[2])])
        ends = [b + (m + 1) * (width - 1) for m, b in enumerate(bounds[1:])]
        lengths = torch.tensor(bounds, device=x.device).diff()
        sequence = torch.arange(len(ends), device=x.device).repeat_interleave(lengths)
        first = torch.arange(x.shape[1], device=x.device) + sequence * (width - 1)
        full = _shifted_products(row[None], weight, bias, max(row.shape[0] - width + 1, 0))
        y = full.index_select(1, first)
        tail = torch.stack([row[e - width + 1 : e] for e in ends]) if ends else state
    return (F.silu(y) if activation == "silu" else y), tail


def _shifted_products(rows: Tensor, weight: Tensor, bias: Tensor | None, tokens: int) -> Tensor:
    """y_t = bias + Σ_w weight[:, w] · rows_{t+w} for t < tokens."""
    y = rows[:, :tokens] * weight[:, 0]
    for w in range(1, weight.shape[1]):
        y = torch.addcmul(y, rows[:, w : w + tokens], weight[:, w])
    return y if bias is None else y + bias
