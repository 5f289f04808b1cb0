"""Linear attention: softmax's exponential becomes a product of features, and the cache a sum."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..ops.linear.api import LinearState, gated_linear
from .base import Mixer
from .parts import feature_maps
from .parts.feature_maps import FeatureMap
from .parts.linear import Linear
from .parts.norms import HeadNorm, OptionalNorm
from .parts.options import above_zero, at_least_one, divide, one_of

__all__ = ["LinearAttention", "LinearAttentionState"]


class LinearAttentionState(NamedTuple):
    """memory [B, H, K, V], S, with K features and V = head_dim; normalizer [B, H, K], z (None without one)."""

    memory: Tensor
    normalizer: Tensor | None


class LinearAttention(Mixer):
    """S_t = S_{t−1} + φ(k_t) v_tᵀ, z_t = z_{t−1} + φ(k_t) (Katharopoulos et al. 2020, equations 16 to 20).

        y = W_out (Sᵀ φ(q) / φ(q)ᵀ z), or W_out norm(Sᵀ φ(q)) without the normaliser

    Args:
        width: D.
        heads: H.
        head_dim: channels of a head before φ, and of its values; default D/H.
        feature_map: φ, see lavagna.mixers.parts.feature_maps; elu1 is the paper's.
        nu: ν of DPFP.
        normalizer: divide by φ(q)ᵀ z; φ must not be negative then.
        norm: of each head's output; without the normaliser a norm keeps the output's size apart from the
            sequence's length (Qin et al. 2022).
        norm_eps: of that norm.

    Parameters: q_proj, k_proj, v_proj [H·head_dim, D], norm [head_dim], out_proj [D, H·head_dim].
    """

    state_class = LinearAttentionState
    recurrence = "S + k vᵀ"
    survives = "I: nothing fades"
    published_mlp = "relu"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        head_dim: int | None = None,
        feature_map: FeatureMap = "elu1",
        nu: int = 3,
        normalizer: bool = True,
        norm: OptionalNorm = "none",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("linear_attention", heads=heads, head_dim=head_dim, nu=nu)
        above_zero("linear_attention", norm_eps=norm_eps)
        one_of("linear_attention", FeatureMap, feature_map=feature_map)
        one_of("linear_attention", OptionalNorm, norm=norm)
        if head_dim is None:
            head_dim = divide("linear_attention", "width", width, "heads", heads)
        if normalizer and feature_map not in feature_maps.NON_NEGATIVE:
            raise ConfigError(
                f"linear_attention: normalizer needs features that are never negative, got {feature_map!r}"
            )
        self.heads, self.head_dim = heads, head_dim
        self.feature_map, self.nu, self.normalizer = feature_map, nu, normalizer
        self.q_proj = Linear(width, heads * head_dim, bias=False)
        self.k_proj = Linear(width, heads * head_dim, bias=False)
        self.v_proj = Linear(width, heads * head_dim, bias=False)
        self.norm = None if norm == "none" else HeadNorm(head_dim, kind=norm, eps=norm_eps)
        self.out_proj = Linear(heads * head_dim, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> LinearAttentionState:
        features = feature_maps.feature_size(self.feature_map, self.head_dim, self.nu)
        keys = (batch_size, self.heads, features)
        return LinearAttentionState(
            self._zeros(*keys, self.head_dim, dtype=dtype, device=device),
            self._zeros(*keys, dtype=dtype, device=device) if self.normalizer else None,
        )

    def mix(
        self, x: Tensor, state: LinearAttentionState | None, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, LinearAttentionState]:
        memory, z = (None, None) if state is None else state
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, self.head_dim))
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        o, final = gated_linear(
            feature_maps.feature_map(self.feature_map, q, self.nu),
            feature_maps.feature_map(self.feature_map, k, self.nu),
            v,
            normalizer=self.normalizer,
            scale=1.0,
            state=memory if memory is None or z is None else LinearState(memory, z),
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        if self.norm is not None:
            o = self.norm(o)
        state = LinearAttentionState(*final) if self.normalizer else LinearAttentionState(final, None)
        return self.out_proj(o.flatten(-2)), state
