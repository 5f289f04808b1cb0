"""How far two answers are apart."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["difference", "usual_difference"]


def difference(found: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """max|found − expected| / scale, the scale being max|expected| if none is given.

    Infinite where one of them is finite and the other is not; equal infinities, and NaN at the same place, agree.
    """
    a, b = _real(found), _real(expected)
    if a.numel() == 0:
        return 0.0
    finite = torch.isfinite(b)
    if not torch.equal(finite, torch.isfinite(a)):
        return float("inf")
    a, b = a[finite], b[finite]
    if a.numel() == 0:
        return 0.0
    largest = float(b.abs().max()) if scale is None else scale
    apart = float((a - b).abs().max())
    return apart / largest if largest > 0 else (float("inf") if apart > 0 else 0.0)


def usual_difference(found: Tensor, expected: Tensor) -> float:
    """The error that 95 % of the tokens stay under: ‖found − expected‖ of a token by the mean ‖expected‖.

    A few tokens whose outputs a norm blows up weigh nothing in it. Infinite if anything is not finite.
    """
    a, b = (_real(t).flatten(0, 1).flatten(1) for t in (found, expected))
    if not bool(torch.isfinite(a).all() and torch.isfinite(b).all()):
        return float("inf")
    size = float(b.norm(dim=-1).mean())
    apart = float((a - b).norm(dim=-1).quantile(0.95))
    return apart / size if size > 0 else (float("inf") if apart > 0 else 0.0)


def _real(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double().cpu()
