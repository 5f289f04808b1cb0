"""Gates, decays and norms are computed in the precision of a state, whatever the activations have."""

from __future__ import annotations

from torch import Tensor

from ..base import state_dtype

__all__ = ["wide"]


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is."""
    dtype = state_dtype(x.dtype)
    return x if x.dtype == dtype else x.to(dtype)
