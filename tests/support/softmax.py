"""Inputs of attention, its state read and compared."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lavagna.ops import attention
from lavagna.ops.dispatch import Result
from lavagna.ops.softmax.cache import KVCache
from lavagna.ops.tree import leaves, named_leaves

IMPLS = ("torch", "reference")
each_impl = pytest.mark.parametrize("impl", IMPLS)


def draw(
    B: int, T: int, H: int = 4, G: int = 2, K: int = 8, V: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(B, T, *shape).to(dtype) for shape in ((H, K), (G, K), (G, V)))


def tokens(x: tuple[Tensor, ...], start: int, stop: int) -> tuple[Tensor, ...]:
    return tuple(t[:, start:stop] for t in x)


def read(x: tuple[Tensor, ...], state: KVCache | None = None, **more: object) -> Result:
    return attention(*x, state=state, return_state=True, **more)


def snapshot(state: KVCache) -> list[Tensor]:
    return [t.clone() for t in leaves(state)]


def same(state: KVCache, expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(state), expected, strict=True))


def assert_same(state: KVCache, expected: KVCache) -> None:
    for (name, got), wanted in zip(named_leaves(state), leaves(expected), strict=True):
        assert torch.equal(got, wanted), name


def left_aligned(k: Tensor, mask: Tensor, b: int) -> Tensor:
    return k[b, mask[b]][None]


def masks(T: int) -> Tensor:
    """Padding on the left, on the right, holes, nothing real, nothing padded."""
    mask = torch.ones(5, T, dtype=torch.bool)
    mask[0, :3] = False
    mask[1, -4:] = False
    mask[2, 1::2] = False
    mask[3] = False
    return mask
