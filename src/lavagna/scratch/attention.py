"""Scaled dot-product attention: each query averages the values of the keys that it may see.

    A = softmax(Q Kᵀ/√d_k + M),  O = A V        M is 0 where a query may look, −∞ where it may not

The mask stands inside of the softmax. Put after it, the hidden keys would still have taken their share of each
row's sum, and the rows would not sum to one.

Source: Vaswani et al. 2017, section 3.2.1.
"""

from __future__ import annotations

import math

import numpy as np

from ..errors import InputError, ShapeError
from .arrays import Array, Mask
from .softmax import softmax, softmax_backward

__all__ = ["attention", "attention_backward", "causal_mask", "padding_mask", "visible"]


def causal_mask(T: int, S: int | None = None) -> Mask:
    """(T, S), True where the query is not before the key.

    The T queries are the last ones of S tokens (S = T if None): query t is token S − T + t.
    """
    S = T if S is None else S
    return np.tri(T, S, S - T, dtype=bool)


def padding_mask(lengths: list[int], S: int) -> Mask:
    """(B, S), True at the real tokens of sequences that are padded on the right to S tokens."""
    return np.arange(S) < np.asarray(lengths)[:, None]


def visible(causal: Mask | None, padding: Mask | None) -> Mask:
    """Combine what the order hides and what is padding: the only place where masks meet.

    Args:
        causal: (T, S), True where query t may see key s; None hides nothing.
        padding: (B, S), True where key s is a real token; None for no padding.

    Returns:
        A mask that broadcasts to the scores (B, h, T, S).

    Raises:
        ShapeError: the masks count different numbers of keys.
    """
    if causal is not None and padding is not None and causal.shape[-1] != padding.shape[-1]:
        raise ShapeError(f"visible: the masks must have as many keys, got {causal.shape} and {padding.shape}")
    mask: Mask = np.array(True)
    if causal is not None:
        mask = mask & causal  # (T, S)
    if padding is not None:
        mask = mask & padding[:, None, None]  # (B, 1, T or 1, S)
    return mask


def attention(
    Q: Array, K: Array, V: Array, mask: Mask | None = None, scale: float | None = None
) -> tuple[Array, Array]:
    """Average the values, each query by its own weights.

        A = softmax(scale · Q Kᵀ, −∞ where hidden),  O = A V

    Args:
        Q: (..., T, d_k), queries.
        K: (..., S, d_k), keys.
        V: (..., S, d_v), values.
        mask: True where a query may look, broadcastable to (..., T, S); None for everywhere.
        scale: 1/√d_k if None. The products of d_k independent numbers of variance one sum to a variance of d_k:
            divided by √d_k the scores stay of size one at every width.

    Returns:
        O (..., T, d_v) and A (..., T, S).
    """
    scores = Q @ K.swapaxes(-1, -2)  # (..., T, S)
    scores *= _scale(Q, scale)
    if mask is not None:
        np.copyto(scores, -np.inf, where=~mask)
    A = softmax(scores)
    return A @ V, A


def attention_backward(
    dO: Array, Q: Array, K: Array, V: Array, A: Array, scale: float | None = None
) -> tuple[Array, Array, Array]:
    """The gradients of Q, K, V.

        dV = Aᵀ dO,  dA = dO Vᵀ,  dZ = softmax_backward(dA, A),  dQ = scale · dZ K,  dK = scale · dZᵀ Q

    A hidden key has weight 0, so that the contracted Jacobian gives it 0: the mask need not be known.
    """
    dV = A.swapaxes(-1, -2) @ dO
    dZ = softmax_backward(dO @ V.swapaxes(-1, -2), A)
    dZ *= _scale(Q, scale)
    return dZ @ K, dZ.swapaxes(-1, -2) @ Q, dV


def _scale(Q: Array, scale: float | None) -> float:
    if scale is None:
        return 1 / math.sqrt(Q.shape[-1])
    if not math.isfinite(scale):
        raise InputError(f"attention: scale must be finite, got {scale}")
    return scale
