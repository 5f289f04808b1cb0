"""The generalised delta rule chunk by chunk; the letters are those of README.md."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..chunk_length import chunk_length
from ..halving import halve
from .recurrent import recurrent

__all__ = ["chunk"]

#: Tokens a chunk, at most.
CHUNK = 32


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_decay: Tensor,
    *,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """q, k, a, b, log_decay [B, T, H, K], v [B, T, H, V], state [B, H, K, V] -> o [B, T, H, V], state."""
    batch, tokens, heads, values = v.shape
    size = chunk_length(chunk_size or CHUNK, tokens, q.shape[3])
    if size == 1:  # a chunk of one token is the recurrence itself
        return recurrent(q, k, v, a, b, log_decay, scale=scale, chunk_size=None, state=state)
    chunks = -(-tokens // size)
    missing = chunks * size - tokens

    def split(x: Tensor) -> Tensor:
        """[B, T, H, X] -> [N, B·H, C, X]; tokens of zeros at the end change no state."""
        if missing:
            x = F.pad(x, (0, 0, 0, 0, 0, missing))
        x = x.reshape(batch, chunks, size, heads, x.shape[3])
        return x.permute(1, 0, 3, 2, 4).reshape(chunks, batch * heads, size, x.shape[4])

    q, k, v, a, b, log_decay = map(split, (q * scale, k, v, a, b, log_decay))
    (q_in,), k_out, total, (qk,) = halve([q], k, log_decay)
    _, b_out, _, (qb,) = halve([q], b, log_decay)
    (a_in,), _, _, (ak,) = halve([a], k, log_decay, reads_first=True)
    _, _, _, (ab,) = halve([a], b, log_decay, reads_first=True)
    of_chunks = (q_in, a_in, b_out, total[..., None], qk @ v, ak @ v, k_out.mT @ v, qb, -ab)

    memory = state.flatten(0, 1)  # [B·H, K, V]
    outputs = []
    for q_n, a_n, b_n, total_n, out, read, written, qb_n, erased in zip(*(x.unbind(0) for x in of_chunks), strict=True):
        read = torch.linalg.solve_triangular(erased, torch.baddbmm(read, a_n, memory), upper=False, unitriangular=True)
        outputs.append(torch.baddbmm(torch.baddbmm(out, q_n, memory), qb_n, read))
        memory = torch.baddbmm(torch.addcmul(written, memory, total_n), b_n.mT, read)
    output = torch.stack(outputs).view(chunks, batch, heads, size, values).permute(1, 0, 3, 2, 4)
    return output.reshape(batch, chunks * size, heads, values)[:, :tokens], memory.view_as(state)
