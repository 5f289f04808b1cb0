"""Gradients that arrive from above in any memory layout."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .contracts import agree


def upstreams(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Gradients as `.sum()`, a transposition and a slice send them, beside the same numbers in plain memory."""
    plain = [torch.randn_like(t) for t in tensors]
    yield [torch.ones((), dtype=t.dtype).expand_as(t) for t in tensors], [torch.ones_like(t) for t in tensors]
    yield [t.transpose(0, -1).contiguous().transpose(0, -1) for t in plain], plain
    yield [torch.stack([t, t], -1)[..., 0] for t in plain], plain


def check_upstreams(results: list[Tensor], asked: Mapping[str, Tensor]) -> None:
    results = [t for t in results if t.requires_grad]
    for strange, plain in upstreams(results):
        found, expected = (
            torch.autograd.grad(results, list(asked.values()), ups, retain_graph=True, materialize_grads=True)
            for ups in (strange, plain)
        )
        agree(dict(zip(asked, found, strict=True)), dict(zip(asked, expected, strict=True)), 1e-12)
