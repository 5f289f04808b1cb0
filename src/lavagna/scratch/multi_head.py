"""Several heads: attention many times over, each in a few channels of its own.

Heads are a reshape and a transpose: (B, T, h · d_k) -> (B, T, h, d_k) -> (B, h, T, d_k). The order matters: reshaped
straight to (B, h, T, d_k) a "head" would hold all channels of some tokens instead of some channels of all tokens; the
shapes fit, nothing raises.

Fewer heads of keys and values than of queries (grouped-query; one alone: multi-query) make the cache smaller: head i
reads the keys and values of group i // (h / groups).

Source: Vaswani et al. 2017, section 3.2.2; Shazeer 2019 (one group); Ainslie et al. 2023 (several).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from ..errors import InputError
from .arrays import Array, Mask, Tokens
from .attention import attention, attention_backward
from .cache import LayerCache
from .linear import linear, linear_backward
from .positions import rotary, rotary_backward

__all__ = [
    "Heads",
    "Intervention",
    "MultiHeadRun",
    "merge_heads",
    "multi_head",
    "multi_head_backward",
    "share",
    "share_backward",
    "split_heads",
]

#: A (B, h, T, S) and V (B, h, S, d_k) -> what to use in their place
Intervention = Callable[[Array, Array], tuple[Array, Array]]


class Heads(NamedTuple):
    """h heads of queries, `groups` heads of keys and values, the scale (None: 1/√d_k), and whether to rotate."""

    h: int
    groups: int
    scale: float | None = None
    rotary: bool = False


class MultiHeadRun(NamedTuple):
    """What the backward needs; A (B, h, T, S) is what people look at."""

    x: Array  # (B, T, d)
    Q: Array  # (B, h, T, d_k)
    K: Array  # (B, h, S, d_k)
    V: Array  # (B, h, S, d_k)
    A: Array  # (B, h, T, S)
    merged: Array  # (B, T, h · d_k), the heads' outputs side by side
    t: Tokens  # (T,), positions


def split_heads(x: Array, h: int) -> Array:
    """(B, T, h · d_k) -> (B, h, T, d_k)."""
    B, T, width = x.shape
    return x.reshape(B, T, h, width // h).transpose(0, 2, 1, 3)


def merge_heads(x: Array) -> Array:
    """(B, h, T, d_k) -> (B, T, h · d_k), the inverse."""
    B, h, T, d_k = x.shape
    return x.transpose(0, 2, 1, 3).reshape(B, T, h * d_k)


def share(x: Array, h: int) -> Array:
    """(B, groups, S, d_k) -> (B, h, S, d_k): each group for h/groups heads in a row."""
    groups = x.shape[1]
    return x if groups == h else np.repeat(x, h // groups, axis=1)


def share_backward(dx: Array, groups: int) -> Array:
    """(B, h, S, d_k) -> (B, groups, S, d_k): what was read by several heads hears from all of them."""
    B, h, S, d_k = dx.shape
    return dx if groups == h else dx.reshape(B, groups, h // groups, S, d_k).sum(2)


def multi_head(
    x: Array,
    p: Mapping[str, Array],
    heads: Heads,
    mask: Mask | None = None,
    *,
    t: Tokens | None = None,
    cache: LayerCache | None = None,
    intervene: Intervention | None = None,
) -> tuple[Array, MultiHeadRun]:
    """Project, attend in each head, project back.

        Q = x Wq + bq, K = x Wk + bk, V = x Wv + bv, split into heads
        y = (A V, merged) Wo + bo

    Args:
        x: (B, T, d).
        p: Wq, Wo (d, d), Wk, Wv (d, groups · d_k) and bq, bk, bv, bo.
        heads: how many, and how they score.
        mask: broadcastable to (B, h, T, S), True where a query may look.
        t: (T,), positions for rotary heads; 0, 1, 2, ... if None.
        cache: earlier keys and values, S − T of them; it takes the new ones. No backward then.
        intervene: what to put in the place of the weights and values, to see what follows from them. No backward then.

    Returns:
        y (B, T, d), and what the backward needs.
    """
    if heads.h % heads.groups:
        raise InputError(f"multi_head: {heads.h} heads cannot share {heads.groups} groups of keys and values evenly")
    t = np.arange(x.shape[1]) if t is None else t
    Q = split_heads(linear(x, p["Wq"], p["bq"]), heads.h)
    K = split_heads(linear(x, p["Wk"], p["bk"]), heads.groups)
    V = split_heads(linear(x, p["Wv"], p["bv"]), heads.groups)
    if heads.rotary:
        Q, K = rotary(Q, t), rotary(K, t)
    if cache is not None:
        K, V = cache.extend(K, V)
    K, V = share(K, heads.h), share(V, heads.h)
    O, A = attention(Q, K, V, mask, heads.scale)
    if intervene is not None:
        A, V = intervene(A, V)
        O = A @ V
    merged = merge_heads(O)
    return linear(merged, p["Wo"], p["bo"]), MultiHeadRun(x, Q, K, V, A, merged, t)


def multi_head_backward(
    dy: Array, p: Mapping[str, Array], heads: Heads, run: MultiHeadRun
) -> tuple[Array, dict[str, Array]]:
    """dx, the sum of three ways back, and the gradients of the eight parameters."""
    dmerged, dWo, dbo = linear_backward(dy, run.merged, p["Wo"])
    dQ, dK, dV = attention_backward(split_heads(dmerged, heads.h), run.Q, run.K, run.V, run.A, heads.scale)
    dK, dV = share_backward(dK, heads.groups), share_backward(dV, heads.groups)
    if heads.rotary:
        dQ, dK = rotary_backward(dQ, run.t), rotary_backward(dK, run.t)
    dx, dWq, dbq = linear_backward(merge_heads(dQ), run.x, p["Wq"])
    dx_k, dWk, dbk = linear_backward(merge_heads(dK), run.x, p["Wk"])
    dx_v, dWv, dbv = linear_backward(merge_heads(dV), run.x, p["Wv"])
    dx += dx_k
    dx += dx_v
    gradients = {"Wq": dWq, "bq": dbq, "Wk": dWk, "bk": dbk, "Wv": dWv, "bv": dbv, "Wo": dWo, "bo": dbo}
    return dx, gradients
