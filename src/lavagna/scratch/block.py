"""A block: attention mixes the tokens, a feed-forward network each token's channels; both add to what was there.

    pre-norm:   x ← x + attention(norm₁ x),    x ← x + feed_forward(norm₂ x)
    post-norm:  x ← norm₁(x + attention(x)),   x ← norm₂(x + feed_forward(x))

In pre-norm x itself is never normalised: the gradient finds a way from the last block to the first one through sums
alone. In post-norm every way leads through every norm.

Source: Vaswani et al. 2017 (post-norm); Xiong et al. 2020 (pre-norm, and what the difference does).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from .arrays import Array, Mask, Tokens
from .cache import LayerCache
from .feed_forward import FeedForwardRun, feed_forward, feed_forward_backward
from .layernorm import LayerNormRun, layernorm, layernorm_backward
from .multi_head import Heads, Intervention, MultiHeadRun, multi_head, multi_head_backward

__all__ = ["BlockRun", "Norm", "block", "block_backward", "block_parameters"]

Norm = Literal["pre", "post"]


class BlockRun(NamedTuple):
    """What the backward needs."""

    attention: MultiHeadRun
    norm1: LayerNormRun
    feed_forward: FeedForwardRun
    norm2: LayerNormRun


def block(
    x: Array,
    p: Mapping[str, Array],
    norm: Norm,
    heads: Heads,
    mask: Mask | None = None,
    *,
    t: Tokens | None = None,
    cache: LayerCache | None = None,
    intervene: Intervention | None = None,
) -> tuple[Array, BlockRun]:
    """x (B, T, d) -> (B, T, d); the other arguments are those of multi_head.

    p has multi_head's and feed_forward's parameters, and the norms' gamma1, beta1, gamma2, beta2.
    """
    if norm == "pre":
        x1, norm1 = layernorm(x, p["gamma1"], p["beta1"])
        y, attention = multi_head(x1, p, heads, mask, t=t, cache=cache, intervene=intervene)
        x = x + y
        x2, norm2 = layernorm(x, p["gamma2"], p["beta2"])
        y, ff = feed_forward(x2, p)
        x = x + y
    else:
        y, attention = multi_head(x, p, heads, mask, t=t, cache=cache, intervene=intervene)
        x, norm1 = layernorm(x + y, p["gamma1"], p["beta1"])
        y, ff = feed_forward(x, p)
        x, norm2 = layernorm(x + y, p["gamma2"], p["beta2"])
    return x, BlockRun(attention, norm1, ff, norm2)


def block_backward(
    dx: Array, p: Mapping[str, Array], norm: Norm, heads: Heads, run: BlockRun
) -> tuple[Array, dict[str, Array]]:
    """From the gradient of the output to that of the input: the lines of `block` from the last to the first."""
    if norm == "pre":
        dx2, ff = feed_forward_backward(dx, p, run.feed_forward)
        dy, dgamma2, dbeta2 = layernorm_backward(dx2, p["gamma2"], run.norm2)
        dx = dx + dy
        dx1, attention = multi_head_backward(dx, p, heads, run.attention)
        dy, dgamma1, dbeta1 = layernorm_backward(dx1, p["gamma1"], run.norm1)
        dx = dx + dy
    else:
        dx, dgamma2, dbeta2 = layernorm_backward(dx, p["gamma2"], run.norm2)
        dy, ff = feed_forward_backward(dx, p, run.feed_forward)
        dx, dgamma1, dbeta1 = layernorm_backward(dx + dy, p["gamma1"], run.norm1)
        dy, attention = multi_head_backward(dx, p, heads, run.attention)
        dx = dx + dy
    return dx, {
        **attention,
        **ff,
        "gamma1": dgamma1,
        "beta1": dbeta1,
        "gamma2": dgamma2,
        "beta2": dbeta2,
    }


def block_parameters(d: int) -> int:
    """How many numbers a block with d_ff = 4 d and as many key heads as query heads learns: 12 d² + 13 d.

    Four matrices d × d and their biases: 4 d² + 4 d. Two matrices d × 4 d: 8 d² + 5 d. Two norms: 4 d.
    """
    return 12 * d * d + 13 * d
