"""The gated delta rule chunk by chunk: everything a chunk can know of itself first, then one loop over states."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..chunk_length import chunk_length
from ..halving import halve
from ..segments import segments
from .recurrent import recurrent
from .unit import unit

__all__ = ["chunk"]

#: Tokens a chunk, at most. Measured on one core with K = V = 128, forward and backward: 32 and 64 take the same
#: time, 16 and 128 a fifth more; the error grows with the chunk where β is near 2.
CHUNK = 32


class _Local(NamedTuple):
    """What a chunk knows without the state that enters it; README.md derives it.

    Fields:
        kk, qk: [..., C, C], products of keys, and of queries, with the keys up to them, faded in between.
        k_in, q_in: [..., C, K], keys and queries as the entering state meets them.
        k_out: [..., C, K], keys as the leaving state keeps them.
        total: [..., 1 or K, 1], what of the entering state is left.
    """

    kk: Tensor
    qk: Tensor
    k_in: Tensor
    q_in: Tensor
    k_out: Tensor
    total: Tensor


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    *,
    qk_l2norm: bool,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] -> o [B, T, HV, V], state."""
    batch, tokens, key_heads, keys = q.shape
    heads, values = v.shape[2:]
    size = chunk_length(chunk_size or CHUNK, tokens, keys)
    if size == 1:  # a chunk of one token is the recurrence itself
        return recurrent(q, k, v, beta, log_decay, qk_l2norm=qk_l2norm, scale=scale, chunk_size=None, state=state)
    chunks = -(-tokens // size)
    missing = chunks * size - tokens

    def split(x: Tensor) -> Tensor:
        """[B, T, heads, X] -> [N, B, H, heads/H, C, X]; tokens of zeros at the end change no state."""
        if missing:
            x = F.pad(x, (0, 0, 0, 0, 0, missing))
        x = x.reshape(batch, chunks, size, key_heads, x.shape[2] // key_heads, x.shape[3])
        return x.permute(1, 0, 3, 4, 2, 5).contiguous()

    def each_chunk(x: Tensor) -> tuple[Tensor, ...]:
        """[N, B, H, 1 or HV/H, ...] -> N of [B·HV, ...]."""
        x = x.expand(chunks, batch, key_heads, heads // key_heads, *x.shape[4:])
        return x.reshape(chunks, batch * heads, *x.shape[4:]).unbind(0)

    if qk_l2norm:
        q, k = unit(q), unit(k)
    if log_decay is not None:
        log_decay = split(log_decay[..., None] if log_decay.ndim == 3 else log_decay)
    beta = split(beta[..., None])
    local = _local(split(q * scale), split(k), log_decay)

    memory = state.flatten(0, 1)  # [B·HV, K, V]
    outputs = []
    of_chunks = (split(v), beta, beta * local.kk, *local[1:])
    for v_n, beta_n, erased, qk, k_in, q_in, k_out, total in zip(*map(each_chunk, of_chunks), strict=True):
        alone = beta_n * torch.baddbmm(v_n, k_in, memory, alpha=-1)
        written = torch.linalg.solve_triangular(erased, alone, upper=False, unitriangular=True)
        outputs.append(torch.baddbmm(torch.bmm(qk, written), q_in, memory))
        memory = torch.baddbmm(memory * total, k_out.mT, written)
    output = torch.stack(outputs).view(chunks, batch, heads, size, values).permute(1, 0, 3, 2, 4)
    return output.reshape(batch, chunks * size, heads, values)[:, :tokens], memory.view_as(state)


def _local(q: Tensor, k: Tensor, log_decay: Tensor | None) -> _Local:
    """q, k [..., C, K] and log_decay None, [..., C, 1] or [..., C, K]."""
    if log_decay is None:
        return _Local(k @ k.mT, (q @ k.mT).tril(), k, q, k, k.new_ones(1).expand(*k.shape[:-2], 1, 1))
    if log_decay.shape[-1] > 1:
        rows = [x.expand_as(log_decay) for x in (k, q)]
        (k_in, q_in), k_out, total, (kk, qk) = halve(rows, rows[0], log_decay)
        return _Local(kk, qk, k_in, q_in, k_out, total[..., None])
    decays = segments(log_decay.squeeze(-1), reads_first=False)
    read, write = decays.read[..., None], decays.write[..., None]
    total = decays.total[..., None, None]
    return _Local(k @ k.mT * decays.between, q @ k.mT * decays.between, k * read, q * read, k * write, total)
