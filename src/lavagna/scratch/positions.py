"""Where a token stands: four answers, none of which attention has by itself.

Without positions attention is a function of a *set*: permute the keys with their values and nothing changes.

- none: nothing is added. (A causal mask still tells how many keys there are to see.)
- sinusoidal: a fixed wave for each pair of channels, defined at every position.
- learned: a row of a table for each position; the table ends.
- rotary: queries and keys are turned by an angle that grows with the position, so that their product depends on the
  distance alone.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from ..errors import InputError
from .arrays import Array, Tokens

__all__ = ["POSITIONS", "Position", "learned", "learned_backward", "rotary", "rotary_backward", "sinusoidal"]

Position = Literal["none", "sinusoidal", "learned", "rotary"]
POSITIONS: tuple[str, ...] = get_args(Position)

BASE = 10000.0  # wavelengths from 2π to 2π · 10000


def sinusoidal(t: Tokens, d: int) -> Array:
    """Waves of d/2 frequencies (Vaswani et al. 2017, section 3.5).

        PE[t, 2i] = sin(t · 10000^{−2i/d}),  PE[t, 2i + 1] = cos(t · 10000^{−2i/d})

    Args:
        t: (T,), positions, as large as you like.
        d: channels, even.

    Returns:
        (T, d).
    """
    angle = _angles(t, d)
    return np.stack([np.sin(angle), np.cos(angle)], -1).reshape(len(t), d)


def learned(P: Array, t: Tokens) -> Array:
    """Rows t (T,) of the table P (T_max, d): (T, d).

    Raises:
        InputError: a position lies beyond the table; nobody has learned anything about it.
    """
    if len(t) and t.max() >= len(P):
        raise InputError(f"learned positions end at {len(P) - 1} (T_max = {len(P)}), got position {t.max()}")
    if len(t) and t.min() < 0:  # NumPy would count from the end
        raise InputError(f"learned positions begin at 0, got position {t.min()}")
    return P[t]


def learned_backward(dx: Array, P: Array, t: Tokens) -> Array:
    """dP (T_max, d) from dx (B, T, d): the batch adds up in each row; rows that were not read have none."""
    dP = np.zeros_like(P)
    dP[t] = dx.sum(0)
    return dP


def rotary(x: Array, t: Tokens) -> Array:
    """Turn pairs of channels by angles that grow with the position (Su et al. 2021, eq. 34).

        (x_i, x_{i+d/2}) turned by t · 10000^{−2i/d},  i < d/2

    A rotation by mφ against one by nφ leaves one by (m − n)φ: q_m · k_n depends on m − n alone. The paper pairs
    neighbours; halves, as in most models since, only number the channels differently.

    Args:
        x: (..., T, d_k), queries or keys.
        t: (T,), positions.

    Returns:
        (..., T, d_k).
    """
    angle = _angles(t, x.shape[-1])
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def rotary_backward(dy: Array, t: Tokens) -> Array:
    """A rotation's transpose is the rotation back."""
    return rotary(dy, -t)


def _angles(t: Tokens, d: int) -> Array:
    """(T, d/2): t · 10000^{−2i/d}."""
    if d % 2:
        raise InputError(f"positions: waves and rotations come in pairs of channels, got {d} channels")
    return t[:, None] * BASE ** (-np.arange(0, d, 2) / d)
