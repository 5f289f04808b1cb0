"""Gates, decays and norms are computed in the precision of a state, whatever the activations have."""

from __future__ import annotations

from torch import Tensor

from ..base import state_dtype

__all__ = ["wide"]


def wide(x: Tensor) -> Tensor:
    """`x` in float32, or in float64 if it is."""
    return x.to(state_dtype(x.dtype))
