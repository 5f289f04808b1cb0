"""The key–value cache: what a causal model computed for the past stays true, so it is kept.

A new token changes no earlier key and no earlier value. Without the cache n new tokens after a prompt of T cost
Σ (T + i) tokens of work in every layer, with it n; what is paid is memory that grows with every token read.
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from .arrays import Array, expect

__all__ = ["LayerCache", "cache_bytes"]


class LayerCache:
    """Keys and values of one layer for up to `capacity` tokens.

    Args:
        B: sequences.
        groups: heads of keys and values.
        capacity: tokens there is room for.
        d_k: channels of a head.
    """

    def __init__(self, B: int, groups: int, capacity: int, d_k: int) -> None:
        self.K = np.zeros((B, groups, capacity, d_k))
        self.V = np.zeros((B, groups, capacity, d_k))
        self.length = 0

    def extend(self, K: Array, V: Array) -> tuple[Array, Array]:
        """Take the keys and values (B, groups, T, d_k) of T new tokens; give back those of all tokens so far.

        Raises:
            InputError: there is no room for them.
        """
        B, groups, capacity, d_k = self.K.shape
        T = K.shape[2]
        expect("LayerCache.extend", "K", K, B, groups, T, d_k)
        expect("LayerCache.extend", "V", V, B, groups, T, d_k)
        end = self.length + T
        if end > capacity:
            raise InputError(f"LayerCache: room for {capacity} tokens, got token {end}")
        self.K[:, :, self.length : end] = K
        self.V[:, :, self.length : end] = V
        self.length = end
        return self.K[:, :, :end], self.V[:, :, :end]


def cache_bytes(layers: int, groups: int, d_k: int, T: int, bytes_per_number: int = 8, B: int = 1) -> int:
    """Memory of the cache after T tokens.

    2 (keys and values) · layers · groups · d_k · T · B · bytes of a number
    """
    return 2 * layers * groups * d_k * T * B * bytes_per_number
