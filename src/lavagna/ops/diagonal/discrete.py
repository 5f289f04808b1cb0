"""The parameters of a diagonal system made discrete, and the powers of its decays."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["as_complex", "as_real", "discretize", "powers", "precise", "readout"]


def precise(x: Tensor) -> Tensor:
    """x in float64 (complex128) where the device has it.

    A power Ā^l multiplies the rounding of Δ·A by l; the parameters are small, so that float64 costs little.
    """
    if x.device.type == "mps":
        return x
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def discretize(dt: Tensor, A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Zero-order hold: dt [D], A, B [D, N] -> Ā = e^{ΔA}, B̄ = (e^{ΔA} − 1)/A · B, both [D, N]."""
    dt = dt[:, None]
    decay, phi = _Exponentials.apply(dt * A)  # type: ignore[no-untyped-call]
    return decay, dt * phi * B


class _Exponentials(torch.autograd.Function):
    """z -> e^z and φ(z) = (e^z − 1)/z, with derivatives that stay exact as z goes to 0.

    Autograd of the quotient would subtract two numbers of size 1/z.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> tuple[Tensor, Tensor]:
        decay, change = _exp_and_expm1(z)
        zero = z == 0
        phi = torch.where(zero, 1, change / torch.where(zero, 1, z))
        ctx.save_for_backward(z, decay, phi)
        return decay, phi

    @staticmethod
    def backward(ctx: Any, d_decay: Tensor, d_phi: Tensor) -> Tensor:
        z, decay, phi = ctx.saved_tensors
        near = z.abs() < 1
        inside, outside = torch.where(near, z, 0), torch.where(near, 1, z)
        # φ'(z) = Σ_{k≥1} k z^{k−1} / (k+1)!, by Horner's rule; the last term is below 1e−17.
        series, factor = torch.zeros_like(z), 1.0
        coefficients = []
        for k in range(1, 19):
            factor /= k + 1
            coefficients.append(k * factor)
        for coefficient in reversed(coefficients):
            series = series * inside + coefficient
        slope = torch.where(near, series, (decay - phi) / outside)
        return d_decay * decay.conj() + d_phi * slope.conj()


def _exp_and_expm1(z: Tensor) -> tuple[Tensor, Tensor]:
    """e^z and e^z − 1; for complex z by real functions, which torch computes several times faster."""
    if not z.is_complex():
        return torch.exp(z), torch.expm1(z)
    size, change = torch.exp(z.real), torch.expm1(z.real)
    half = z.imag / 2
    sine, cosine = torch.sin(half), torch.cos(half)
    turned = 2 * sine * sine  # 1 − cos b
    along, across = 1 - turned, 2 * sine * cosine  # cos b, sin b
    return (
        torch.complex(size * along, size * across),
        torch.complex(change * along - turned, size * across),
    )


def powers(decay: Tensor, count: int) -> Tensor:
    """[D, N] -> [D, N, count], the powers from 0 on, by doubling."""
    result, step = torch.ones_like(decay).unsqueeze(-1), decay
    while result.shape[-1] < count:
        result = torch.cat([result, result * step.unsqueeze(-1)], -1)
        step = step * step
    return result[..., :count]


def as_real(x: Tensor) -> Tensor:
    """[..., N] complex -> [..., 2N], real and imaginary parts in turn; a real one stays."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if x.is_complex() else x


def as_complex(x: Tensor, like: Tensor) -> Tensor:
    """The inverse of :func:`as_real`, complex where `like` is."""
    return torch.view_as_complex(x.unflatten(-1, (-1, 2))) if like.is_complex() else x


def readout(weight: Tensor) -> Tensor:
    """Weights [..., N] -> [..., N or 2N] such that readout(w) · as_real(h) = 2·Re Σ w h, or Σ w h for real ones."""
    return 2 * as_real(weight.conj()) if weight.is_complex() else weight
