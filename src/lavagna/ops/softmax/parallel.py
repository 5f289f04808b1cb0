"""attention over all tokens at once, by torch's scaled_dot_product_attention."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import KVCache

__all__ = ["attend"]

#: queries that share a band of keys under a window
BAND = 64
#: most elements of one mask
MASK = 1 << 22


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    keep: bool,
    state: KVCache,
    real: Tensor | None = None,
) -> tuple[Tensor, KVCache]:
    """q [B, T, H, K], k [B, T, G, K], v [B, T, G, V] -> o [B, T, H, V], state.

    `real` [B, T] says which tokens are some: the first ones of each row.
    """
    kind = q.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        # The inputs have the dtype that the caller chose.
        with torch.autocast(kind, enabled=False):
            return attend(q, k, v, causal=causal, window=window, scale=scale, keep=keep, state=state, real=real)
    held = state.lengths
    counts = None if real is None else real.sum(1).tolist()
    if counts is not None and min(counts) == q.shape[1]:
        counts = real = None
    if not held:  # no row, or no sequence
        return q.new_zeros(*q.shape[:3], v.shape[3]), state
    if not causal:
        return _softmax(q, k, v, scale, None if real is None else _mask(~real[:, None], q.dtype)), state
    if keep:
        old = state.keys, state.values
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *old))
        k, v, state = state.append(k, v, counts, keep=None if window is None else window - 1, in_place=not recorded)
    else:
        k, v = state.read(k, v, counts)
    if q.shape[1] == 0:
        return q.new_zeros(*q.shape[:3], v.shape[3]), state
    return _causal(q, k, v, scale, held, window, real), state


def _causal(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    held: Sequence[int],
    window: int | None,
    real: Tensor | None,
) -> Tensor:
    """Query t of row b stands at slot held[b] + t of k, v [B, S, G, ·] and sees it and what is before it."""
    T, S = q.shape[1], k.shape[1]
    if window is not None and window >= S:
        window = None
    level = len(set(held)) == 1
    if level and held[0] == 0 and window is None:
        return _softmax(q, k, v, scale, causal=True)
    if level and T == 1:
        first = 0 if window is None else max(held[0] + 1 - window, 0)
        return _softmax(q, k[:, first : held[0] + 1], v[:, first : held[0] + 1], scale)

    slot = torch.tensor(held[:1] if level else held, device=q.device)[:, None] + torch.arange(T, device=q.device)
    chunk = BAND if window is not None else max(MASK // (len(slot) * S), 1)
    masks: dict[tuple[int, int, int], Tensor] = {}
    outputs = []
    for start in range(0, T, chunk):
        stop = min(start + chunk, T)
        first = 0 if window is None else max(min(held) + start + 1 - window, 0)
        last = min(max(held) + stop, S)
        # Bands of the same shape share one mask, which autograd then keeps once.
        shape = (stop - start, last - first, held[0] + start - first)
        mask = masks.get(shape)
        if mask is None:
            query, key = slot[:, start:stop, None], torch.arange(first, last, device=q.device)
            hidden = key > query
            if window is not None:
                hidden = hidden | (key <= query - window)
            if real is not None:
                hidden = hidden & real[:, start:stop, None]  # what is no token sees anything, rather than nothing
            mask = _mask(hidden, q.dtype)
            if window is not None and level and real is None:
                masks[shape] = mask
        outputs.append(_softmax(q[:, start:stop], k[:, first:last], v[:, first:last], scale, mask))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)


def _mask(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """What to add to the logits [B, H, T, S] so that hidden [B, T, S] keys are unseen."""
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -torch.inf)[:, None]


def _softmax(
    q: Tensor, k: Tensor, v: Tensor, scale: float, mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """q [B, T, H, K], k [B, S, G, K], v [B, S, G, V], mask [B, 1, T, S] -> [B, T, H, V]."""
    B, T, H, K = q.shape
    S, G, V = v.shape[1:]
    if T > 1 and G != H:
        k, v = (x[:, :, :, None].expand(B, S, G, H // G, x.shape[3]).flatten(2, 3) for x in (k, v))
    if T > 1 and K != V:
        # torch has fast kernels for equal dimensions alone; zeros change neither products nor sums.
        q, k, v = (F.pad(x, (0, max(K, V) - x.shape[3])) for x in (q, k, v))
    q = q.transpose(1, 2)
    rows = H // G
    if T == 1:
        # The heads of a group are queries of the same keys, so that none is repeated. In half precision torch
        # takes a slow path for a single one (measured: 3.4 times slower than two).
        q = q.reshape(B, G, rows, K)
        if rows == 1 and q.dtype in (torch.bfloat16, torch.float16):
            q = q.expand(B, G, 2, K)
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k.transpose(1, 2), v.transpose(1, 2)))
    o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and T > 1, scale=scale)
    if T == 1:
        return o[:, :, :rows].reshape(B, 1, H, V)
    return o.transpose(1, 2)[..., :V]
