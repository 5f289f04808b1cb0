"""Softmax attention: it keeps every key and value that it has read."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import ConfigError
from ..ops.softmax.api import attention
from ..ops.softmax.cache import KVCache
from .base import Mixer
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide, one_of
from .parts.positions import Position, positions, rotate
from .parts.precision import wide

__all__ = ["Attention"]

QKNorm = Literal["none", "rmsnorm"]


class Attention(Mixer):
    """o_t = Σ_s softmax_s(K^-0.5 q_t · k_s) v_s over the tokens s that t sees (Vaswani et al. 2017, equation 1).

    Learned and sinusoidal positions are added to a model's embeddings, as the papers that have them do; they are
    an option of the model (``position``). Rotary positions turn queries and keys, and are one of the mixer.

    Args:
        width: D.
        heads: H.
        kv_heads: G, heads of keys and values, a divisor of H; default H. 1 is multi-query, between is
            grouped-query attention: head h reads group h // (H/G).
        head_dim: K = V; default D/H.
        position: "rotary" or "none".
        rope_theta: base of the wavelengths.
        rope_fraction: share of each head's channels that is turned, the first ones.
        causal: a token sees itself and those before it. False, it sees its whole sequence; then there is no state,
            and a sequence must come in one piece.
        window: how many tokens are seen, the current one included; None for all.
        qk_norm: "rmsnorm" over each head of queries and keys before the rotation, as in Qwen3.
        norm_eps: of these norms.
        qkv_bias: q_proj, k_proj and v_proj have biases.
        out_bias: out_proj has one.
        gate: multiply each channel of o by σ(W_g x) before out_proj, as in Qwen3-Next.

    Parameters: q_proj [H·K, D], k_proj and v_proj [G·K, D], gate_proj [H·K, D], q_norm and k_norm [K],
        out_proj [D, H·K].

    State: KVCache: keys and values [B, S, G, K] in the activations' dtype, S the tokens read, or the last window − 1
        of them; seen [B]. A cache keeps the dtype it began with: under autocast ``state=None`` begins one in half
        precision, as the projections come, and ``init_state(B)`` one in the parameters' dtype.
    """

    state_class = KVCache
    recurrence = "every k and v, kept"
    survives = "a cache that grows"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        position: Position = "rotary",
        rope_theta: float = 10000.0,
        rope_fraction: float = 1.0,
        causal: bool = True,
        window: int | None = None,
        qk_norm: QKNorm = "none",
        norm_eps: float = 1e-6,
        qkv_bias: bool = False,
        out_bias: bool = False,
        gate: bool = False,
    ) -> None:
        super().__init__(width)
        at_least_one("attention", heads=heads, kv_heads=kv_heads, head_dim=head_dim, window=window)
        above_zero("attention", rope_theta=rope_theta, norm_eps=norm_eps)
        one_of("attention", Position, position=position)
        one_of("attention", QKNorm, qk_norm=qk_norm)
        kv_heads = heads if kv_heads is None else kv_heads
        divide("attention", "heads", heads, "kv_heads", kv_heads)
        head_dim = divide("attention", "width", width, "heads", heads) if head_dim is None else head_dim
        turned = rope_fraction * head_dim
        if position == "rotary" and not (0 < rope_fraction <= 1 and turned == int(turned) and turned % 2 == 0):
            raise ConfigError(
                f"attention: rotary positions need an even number of channels, "
                f"got rope_fraction {rope_fraction} of head_dim {head_dim}"
            )
        if window is not None and not causal:
            raise ConfigError(f"attention: window needs causal=True, got window {window} with causal=False")
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.position, self.rope_theta, self.turned = position, rope_theta, int(turned)
        self.causal, self.window = causal, window
        self.q_proj = Linear(width, heads * head_dim, bias=qkv_bias)
        self.k_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = Linear(width, kv_heads * head_dim, bias=qkv_bias)
        self.gate_proj = Linear(width, heads * head_dim, bias=False) if gate else None
        self.q_norm = HeadNorm(head_dim, eps=norm_eps) if qk_norm == "rmsnorm" else nn.Identity()
        self.k_norm = HeadNorm(head_dim, eps=norm_eps) if qk_norm == "rmsnorm" else nn.Identity()
        self.out_proj = Linear(heads * head_dim, width, bias=out_bias)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> KVCache | None:
        if not self.causal:
            return None
        dtype, device = self._like(dtype, device)
        return KVCache.empty(batch_size, self.kv_heads, self.head_dim, self.head_dim, dtype, device)

    def state_bytes(self, context: int, batch_size: int = 1, dtype: torch.dtype = torch.float32) -> int:
        if not self.causal:
            return 0
        kept = context if self.window is None else min(context, self.window - 1)
        return batch_size * (2 * kept * self.kv_heads * self.head_dim * dtype.itemsize + torch.int64.itemsize)

    def mix(self, x: Tensor, state: KVCache | None, cu_seqlens: Tensor | None) -> tuple[Tensor, KVCache | None]:
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, self.head_dim)))
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim)))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        if self.position == "rotary":
            position, _ = positions(x, None if state is None else state.seen, cu_seqlens)
            q, k = (rotate(t, position, theta=self.rope_theta, size=self.turned) for t in (q, k))
        if state is not None:
            # Under autocast the projections may have another dtype than the cache began with.
            k, v = k.to(state.keys.dtype), v.to(state.keys.dtype)
        o, state = attention(
            q,
            k,
            v,
            causal=self.causal,
            window=self.window,
            state=state,
            return_state=self.causal,
            cu_seqlens=cu_seqlens,
        )
        o = o.flatten(-2)
        if self.gate_proj is not None:
            o = (o * wide(self.gate_proj(x)).sigmoid()).to(o.dtype)
        return self.out_proj(o), state
