"""Costs in closed form, where a line of algebra gives them: shown beside what was counted, and tested against it."""

from __future__ import annotations

from collections import Counter

from ..mixers.attention import Attention
from ..models.block import Block

__all__ = ["formulas_of", "kv_cache", "pre_norm_block"]


def pre_norm_block(width: int) -> int:
    """Parameters of a block of attention with H·K = D and an MLP of 4 D, biases and LayerNorms: 12 D² + 13 D.

    Four projections D² + D; D·4D + 4D and 4D·D + D; two norms of 2 D.
    """
    return 12 * width**2 + 13 * width


def kv_cache(*, layers: int, heads: int, head_dim: int, tokens: int, rows: int, itemsize: int) -> int:
    """Bytes of keys and values: one of each for every layer, head of keys, token and row."""
    return 2 * layers * heads * head_dim * tokens * rows * itemsize


def formulas_of(block: Block, count: int, rows: int, itemsize: int) -> tuple[str, ...]:
    """The formulas that hold for `count` blocks of this kind, written out."""
    found = []
    width = block.mixer.width
    shapes = Counter(tuple(p.shape) for p in block.parameters())
    if shapes == Counter(
        {(width, width): 4, (4 * width, width): 1, (width, 4 * width): 1, (4 * width,): 1, (width,): 9}
    ):
        found.append(f"parameters of a block: 12 D² + 13 D = {pre_norm_block(width):,} with D = {width}")
    mixer = block.mixer
    if isinstance(mixer, Attention) and mixer.causal and mixer.window is None:
        token = kv_cache(
            layers=count, heads=mixer.kv_heads, head_dim=mixer.head_dim, tokens=1, rows=rows, itemsize=itemsize
        )
        found.append(
            f"key–value cache: 2 · {count} layers · {mixer.kv_heads} heads · {mixer.head_dim} · {rows} rows · "
            f"{itemsize} bytes = {token:,} bytes a token"
        )
    return tuple(found)
