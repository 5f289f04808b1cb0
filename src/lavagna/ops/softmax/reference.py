"""attention one query at a time, as the definition says."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

__all__ = ["attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool,
    window: int | None,
    scale: float,
    keep: bool,
    state: Any,
    real: Tensor | None = None,
) -> tuple[Tensor, Any]:
    """q [B, T, H, K], k [B, T, G, K], v [B, T, G, V], state a KVCache -> o [B, T, H, V], state."""
    B, T, H, K = q.shape
    G, V = v.shape[2:]
    outputs, kept_keys, kept_values = [], [], []
    tokens = [T if real is None else int(real[b].sum()) for b in range(state.seen.shape[0])]
    for b, new in enumerate(tokens):
        old = min(int(state.seen[b]), state.keys.shape[1])
        keys = torch.cat([state.keys[b, :old].to(k.dtype), k[b, :new]])
        values = torch.cat([state.values[b, :old].to(v.dtype), v[b, :new]])
        for t in range(T):
            if t >= new:
                outputs.append(v.new_zeros(H, V))
                continue
            last = old + t if causal else new - 1
            first = 0 if window is None else max(last - window + 1, 0)
            q_t = q[b, t].reshape(G, H // G, K)  # head h reads the keys of group h // (H / G)
            logits = scale * torch.einsum("grk,sgk->grs", q_t, keys[first : last + 1])
            weights = torch.softmax(logits, -1)
            outputs.append(torch.einsum("grs,sgv->grv", weights, values[first : last + 1]).reshape(H, V))
        drop = 0 if window is None else max(old + new - (window - 1), 0)
        kept_keys.append(keys[drop:])
        kept_values.append(values[drop:])
    o = torch.stack(outputs).reshape(B, T, H, V) if outputs else v.new_zeros(B, T, H, V)
    if not causal or not tokens:
        return o, state
    final = type(state)(
        pad_sequence(kept_keys, batch_first=True).to(state.keys.dtype),
        pad_sequence(kept_values, batch_first=True).to(state.values.dtype),
        state.seen + torch.tensor(tokens, device=q.device),
    )
    return o, final
