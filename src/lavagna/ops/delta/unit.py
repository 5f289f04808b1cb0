"""The L2 norm of queries and keys."""

from __future__ import annotations

from torch import Tensor

__all__ = ["unit"]


def unit(x: Tensor) -> Tensor:
    """x / sqrt(Σx² + 1e-6) along the last dimension; zero stays zero."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
