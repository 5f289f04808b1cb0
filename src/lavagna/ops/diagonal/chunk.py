"""diagonal_ssm in chunks: a small convolution inside each, the state from one to the next."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..packing import run_packed
from .discrete import as_complex, as_real, discretize, powers, precise, readout

__all__ = ["scan"]

CHUNK = 64


class _System(NamedTuple):
    """What the parameters alone decide of a chunk of C tokens: made once for all chunks and all packed sequences.

    Fields:
        ends: [D, C, N or 2N], what x_c leaves at the end of its chunk: B̄ Ā^{C−1−c}.
        reads: [D, N or 2N, C], what token c reads of the state before the chunk: C Ā^{c+1}.
        within: [D, C, C], what a token reads of those before it in the chunk, and of itself.
        power: [D, N, C+1], Ā^0 to Ā^C.
    """

    ends: Tensor
    reads: Tensor
    within: Tensor
    power: Tensor


def scan(
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
    bounds: list[int] | None,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], dt, D [D], A, B, C [D, N], state [B, D, N] or one per packed sequence -> y [B, T, D], state."""
    longest = x.shape[1] if bounds is None else max((b - a for a, b in pairwise(bounds)), default=0)
    if longest == 0 or x.shape[0] == 0:
        return x, state
    system = _system(dt, A, B, C, D, min(chunk_size or CHUNK, longest), x.dtype, state.dtype)
    if bounds is None:
        return _run(x, real, system, state, keep)
    assert real is not None
    return run_packed(
        lambda group, rows: _run(group["x"], group["real"], system, rows, keep),
        {"x": x, "real": real},
        {"real": False},
        state,
        bounds,
    )


def _system(
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    size: int,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
) -> _System:
    decay, write = discretize(precise(dt), precise(A), precise(B))
    power = powers(decay, size + 1)
    ends = write.unsqueeze(-1) * power[..., :size].flip(-1)
    reads = readout((precise(C).unsqueeze(-1) * power).mT)  # [D, C+1, N or 2N]: C Ā^c
    lag = torch.einsum("dcn,dn->dc", reads[:, :size], as_real(write))  # what is read c tokens later of x: C Ā^c B̄
    if D is not None:
        lag = torch.cat([lag[:, :1] + precise(D)[:, None], lag[:, 1:]], 1)
    return _System(
        as_real(ends.mT).to(dtype), reads[:, 1:].mT.to(dtype), _toeplitz(lag.to(dtype)), power.to(state_dtype)
    )


def _run(x: Tensor, real: Tensor | None, system: _System, state: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """x [B, T, D], state [B, D, N] -> y [B, T, D], state; `real` [B, T] says which tokens are some."""
    batch, T, width = x.shape
    if T == 0:
        return x, state
    ends, reads, within, power = system
    size = within.shape[1]
    chunks = -(-T // size)
    rows = F.pad(x, (0, 0, 0, chunks * size - T)).unflatten(1, (chunks, size)).permute(3, 0, 1, 2)
    rows = rows.reshape(width, batch * chunks, size)
    written = as_complex((rows @ ends).unflatten(1, (batch, chunks)), state)  # [D, B, chunks, N]
    over_chunk = power[:, None, :, size]
    h, begins = state.transpose(0, 1), []
    for part in written.unbind(2):
        begins.append(h)
        h = torch.addcmul(part, over_chunk, h)
    begin = torch.stack(begins, 2)

    y = torch.baddbmm(rows @ within, as_real(begin).flatten(1, 2), reads)
    y = y.unflatten(1, (batch, chunks)).permute(1, 2, 3, 0).flatten(1, 2)[:, :T]
    if keep and (real is not None or T % size):
        h = _final(x, real, begin, ends, power, size)
    return y, h.transpose(0, 1)


def _toeplitz(lag: Tensor) -> Tensor:
    """[D, C] -> [D, C, C], lag[j − i] at (i, j), zero below the diagonal."""
    size = lag.shape[1]
    step = torch.arange(size, device=lag.device)
    apart = step - step[:, None]
    return torch.where(apart >= 0, lag[:, apart.clamp(min=0)], 0)


def _final(x: Tensor, real: Tensor | None, begin: Tensor, ends: Tensor, power: Tensor, size: int) -> Tensor:
    """The states [D, B, N] after each row's last token, from the begin [D, B, chunks, N] of its last chunk.

    Padding behind a row's end would let its state fade, so the last chunk is moved up to end with the row.
    """
    batch, T = x.shape[:2]
    length = torch.full((batch,), T, device=x.device) if real is None else real.sum(1)
    last = (length - 1).clamp(min=0) // size
    place = length[:, None] - size + torch.arange(size, device=x.device)
    inside = place >= (last * size)[:, None]
    taken = x.gather(1, torch.where(inside, place, 0).unsqueeze(-1).expand(-1, -1, x.shape[2]))
    tail = torch.where(inside.unsqueeze(-1), taken, 0).permute(2, 0, 1)  # [D, B, C]
    start = begin[:, torch.arange(batch, device=x.device), last]
    faded = power[..., length - last * size].transpose(1, 2) * start
    return faded + as_complex(tail @ ends, begin)
