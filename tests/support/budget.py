"""The one rule that says how far an answer may be from the truth."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["check", "check_all", "close", "close_all", "error"]


def error(got: Tensor, exact: Tensor) -> float:
    """Largest absolute difference; NaN where either is NaN, 0 for empty tensors."""
    if got.numel() == 0:
        return 0.0
    wide = torch.complex128 if exact.is_complex() else torch.float64
    return (got.detach().to(wide) - exact.detach().to(wide)).abs().max().item()


def size(exact: Tensor) -> float:
    """Largest absolute value, 0 for empty tensors."""
    return exact.detach().abs().max().item() if exact.numel() else 0.0


def _whole(exact: Tensor) -> bool:
    """Counts have no rounding to allow for."""
    return not (exact.is_floating_point() or exact.is_complex())


def check(name: str, got: Tensor, same: Tensor, exact: Tensor, rounding: torch.dtype | None = None) -> None:
    """Hold one tensor of an answer to the budget.

        |got − exact| ≤ 2 · (|same − exact| + 4 · eps · max|exact|)

    The smallest normal number of the dtype is added to the bracket: what is below it is nobody's promise.

    Args:
        name: of the tensor, for the message.
        got: the answer under test.
        same: the reference's answer in the same dtype.
        exact: the reference's answer in float64 (or complex128).
        rounding: whose eps, where what is inside is rounded more coarsely than `got` (by default its own).

    Raises:
        AssertionError: shape or dtype differ, a value is not finite, or the error is beyond the budget.
    """
    assert got.shape == exact.shape, f"{name}: shape {list(got.shape)}, expected {list(exact.shape)}"
    assert got.dtype == same.dtype, f"{name}: dtype {got.dtype}, expected {same.dtype}"
    assert torch.isfinite(exact).all(), f"{name}: the float64 reference is not finite"
    assert torch.isfinite(got).all(), f"{name}: not finite"
    if _whole(exact):
        assert torch.equal(got, exact), f"{name}: {got.tolist()}, expected {exact.tolist()}"
        return
    limits = torch.finfo(rounding or got.dtype)
    band = 4 * limits.eps * size(exact) + limits.tiny
    budget = 2 * (error(same, exact) + band)
    found = error(got, exact)
    assert found <= budget, f"{name}: error {found:.3g}, {found / budget:.3g} times the budget of {budget:.3g}"


def check_all(
    got: Mapping[str, Tensor],
    same: Mapping[str, Tensor],
    exact: Mapping[str, Tensor],
    rounding: torch.dtype | None = None,
) -> None:
    """Hold every tensor of an answer to the budget; the names must agree."""
    assert list(got) == list(exact)
    for name in exact:
        check(name, got[name], same[name], exact[name], rounding)


def close(name: str, got: Tensor, exact: Tensor, tolerance: float = 1e-9) -> None:
    """Demand equality in float64 up to rounding: |got − exact| ≤ tolerance · max|exact|.

    Any error of a formula is larger by orders of magnitude than the rounding of float64.
    """
    assert got.shape == exact.shape, f"{name}: shape {list(got.shape)}, expected {list(exact.shape)}"
    assert got.dtype == exact.dtype, f"{name}: dtype {got.dtype}, expected {exact.dtype}"
    assert torch.isfinite(exact).all(), f"{name}: the expected values are not finite"
    if _whole(exact):
        assert torch.equal(got, exact), f"{name}: {got.tolist()}, expected {exact.tolist()}"
        return
    found, bound = error(got, exact), tolerance * size(exact) + torch.finfo(exact.dtype).tiny
    assert found <= bound, f"{name}: difference {found:.3g}, allowed {bound:.3g}"


def close_all(got: Mapping[str, Tensor], exact: Mapping[str, Tensor], tolerance: float = 1e-9) -> None:
    """Demand equality of every tensor up to rounding; the names must agree."""
    assert list(got) == list(exact)
    for name in exact:
        close(name, got[name], exact[name], tolerance)
