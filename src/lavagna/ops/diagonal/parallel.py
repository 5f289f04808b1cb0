"""diagonal_ssm over all tokens at once: a convolution by the fast Fourier transform."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .discrete import as_complex, as_real, discretize, powers, precise, readout

__all__ = ["convolve"]


def convolve(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    *,
    keep: bool,
    chunk_size: int | None,
    state: Tensor,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], dt, D [D], A, B, C [D, N], state [B, D, N] -> y [B, T, D], state; `chunk_size` has no meaning."""
    batch, T, _ = x.shape
    if T == 0 or batch == 0:
        return x, state
    decay, write = discretize(precise(dt), precise(A), precise(B))
    # Ā^t with t = block·i + j is the product of two tables of √T entries each: no [D, N, T] is ever held.
    block = math.isqrt(T - 1) + 1
    blocks = -(-T // block)
    fine = powers(decay, block + 1)
    coarse = powers(fine[..., block], blocks + 1)
    fine = fine[..., :block]

    # The response to an input of 1 is the response to a state of B̄.
    impulses = torch.cat([write[None], decay * precise(state)])  # [1+B, D, N]
    weights = readout((precise(C) * impulses).unsqueeze(2) * coarse[..., :blocks].mT)  # [1+B, D, blocks, N or 2N]
    response = (weights @ as_real(fine.mT).mT).flatten(2)[..., :T]

    inputs = precise(x).mT
    size = _smooth(2 * T)
    product = torch.fft.rfft(inputs, size) * torch.fft.rfft(response[0], size)
    y = torch.fft.irfft(product, size)[..., :T] + response[1:]
    y = y.mT if D is None else y.mT + precise(D) * precise(x)
    if keep:
        state = _final(inputs, real, write, fine, coarse, precise(state)).to(state.dtype)
    return y.to(x.dtype), state


def _final(inputs: Tensor, real: Tensor | None, write: Tensor, fine: Tensor, coarse: Tensor, state: Tensor) -> Tensor:
    """Ā^L h_0 + Σ_t Ā^{L−1−t} B̄ x_t of each row's L tokens; inputs [B, D, T], fine, coarse [D, N, √T]."""
    T, block, blocks = inputs.shape[2], fine.shape[2], coarse.shape[2] - 1
    length = torch.full(inputs.shape[:1], T, device=inputs.device) if real is None else real.sum(1)
    tokens = F.pad(inputs, (block * blocks - T, 0))
    if real is not None:  # move each row up, to end where the sums do
        place = torch.arange(-block * blocks, 0, device=inputs.device) + length[:, None]
        taken = inputs.gather(2, place.clamp(min=0).unsqueeze(1).expand_as(tokens))
        tokens = torch.where(place.unsqueeze(1) >= 0, taken, 0)
    inner = as_complex(tokens.unflatten(2, (blocks, block)) @ as_real(fine.flip(-1).mT), state)
    sums = (inner * coarse[..., :blocks].flip(-1).mT).sum(2)
    faded = (fine[..., length % block] * coarse[..., length // block]).permute(2, 0, 1)
    return faded * state + write * sums


def _smooth(n: int) -> int:
    """The least product of 2, 3 and 5 from n on: sizes that transforms are fast at."""
    best = 1 << (n - 1).bit_length()
    for five in (1, 5, 25):
        for three in (1, 3, 9):
            odd = five * three
            best = min(best, odd << max(-(-n // odd) - 1, 0).bit_length())
    return best
