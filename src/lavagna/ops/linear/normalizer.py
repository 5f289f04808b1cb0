"""The normaliser as one more value channel: with v = 1 the recurrence of S is the recurrence of z."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["EPSILON", "LinearState", "divide", "with_ones"]

#: added to the denominator, as in flash-linear-attention
EPSILON = 1e-10


class LinearState(NamedTuple):
    """State of a normalised recurrence.

    Fields:
        S: [B, HV, K, V], the sum of k vᵀ under the decay.
        z: [B, HV, K], the sum of k under the same decay.
    """

    S: Tensor
    z: Tensor


def with_ones(v: Tensor, state: LinearState) -> tuple[Tensor, Tensor]:
    """v [B, T, HV, V+1] whose last channel is one, and [S, z] as one state [B, HV, K, V+1]."""
    return F.pad(v, (0, 1), value=1.0), torch.cat([state.S, state.z[..., None]], -1)


def divide(o: Tensor, S: Tensor) -> tuple[Tensor, LinearState]:
    """Undo :func:`with_ones`: the output divided by its last channel, and the two states."""
    state = LinearState(S[..., :-1].contiguous(), S[..., -1].contiguous())
    return o[..., :-1] / (o[..., -1:] + EPSILON), state
