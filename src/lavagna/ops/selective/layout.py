"""The one place that says which channel has which B and C.

The D channels are G groups of D/G neighbours. B and C have one row of N a group, the same for all its
channels, or, where they are constant over time, one row a channel.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["by_group", "groups_of"]


def groups_of(B: Tensor, C: Tensor) -> int:
    """G: 1 unless B or C comes as [B, T, G, N]."""
    return B.shape[2] if B.ndim == 4 else C.shape[2] if C.ndim == 4 else 1


def by_group(coefficient: Tensor, groups: int) -> Tensor:
    """B or C as it broadcasts against [B, T, G, D/G, N]: [B, T, G, 1, N], or constant [1, 1, G, D/G, N]."""
    if coefficient.ndim == 2:
        return coefficient.unflatten(0, (groups, -1))[None, None]
    if coefficient.ndim == 3:
        coefficient = coefficient.unsqueeze(2).expand(-1, -1, groups, -1)
    return coefficient.unsqueeze(3)
