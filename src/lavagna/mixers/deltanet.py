"""DeltaNet: a memory that corrects what it holds under a key instead of adding to it."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from ..ops.delta.api import gated_delta
from .base import Mixer
from .parts import feature_maps
from .parts.conv import ShortConv
from .parts.feature_maps import FeatureMap
from .parts.linear import Linear
from .parts.norms import HeadNorm, OptionalNorm
from .parts.options import above_zero, at_least_one, divide, one_of
from .parts.precision import wide

__all__ = ["DeltaNet", "DeltaNetState"]

QKNorm = Literal["l2", "sum"]


class DeltaNetState(NamedTuple):
    """conv [B, W−1, 2·H·K + H·V], the convolution's last inputs (None without one); memory [B, H, K, V], S."""

    conv: Tensor | None
    memory: Tensor


class DeltaNet(Mixer):
    """S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ (Schlag et al. 2021; Yang et al. 2024).

        (q, k, v) = silu(conv(W_qkv x));  q, k ← φ(q), φ(k), then normalised;  β = σ(W_b x)
        y = W_out (norm(scale · Sᵀ q) ∘ silu(W_g x)), the gate where asked for

    The defaults are the DeltaNet of 2024. The Delta Network of 2021 is ``conv_taps=None, feature_map="dpfp" (or
    "elu1"), qk_norm="sum", norm="none"``.

    Args:
        width: D.
        heads: H.
        key_dim: channels of q and k in a head, before φ; default D/H.
        value_dim: V; default D/H.
        conv_taps: W of the short convolution with its SiLU; None for neither.
        feature_map: φ, see lavagna.mixers.parts.feature_maps.
        nu: ν of DPFP.
        qk_norm: "l2": q/‖q‖ and k/‖k‖, scale K^-0.5; "sum": q/Σq and k/Σk (Schlag et al.'s sum normalisation), scale 1.
        gate: with an output gate.
        norm: of each head's output.
        norm_eps: of that norm.

    Parameters: qkv_proj [H·(2·key_dim + V), D] (q, k, v in this order, head by head), conv, b_proj [H, D],
        gate_proj [H·V, D], norm [V], out_proj [D, H·V].
    """

    state_class = DeltaNetState
    recurrence = "(I − β_t k kᵀ) S + β_t k vᵀ"
    survives = "a Householder-like erase"

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        key_dim: int | None = None,
        value_dim: int | None = None,
        conv_taps: int | None = 4,
        feature_map: FeatureMap = "identity",
        nu: int = 3,
        qk_norm: QKNorm = "l2",
        gate: bool = False,
        norm: OptionalNorm = "rmsnorm",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("deltanet", heads=heads, key_dim=key_dim, value_dim=value_dim, conv_taps=conv_taps, nu=nu)
        above_zero("deltanet", norm_eps=norm_eps)
        one_of("deltanet", FeatureMap, feature_map=feature_map)
        one_of("deltanet", QKNorm, qk_norm=qk_norm)
        one_of("deltanet", OptionalNorm, norm=norm)
        if qk_norm == "sum" and feature_map not in feature_maps.NON_NEGATIVE:
            raise ConfigError(f"deltanet: qk_norm 'sum' needs features that are never negative, got {feature_map!r}")
        if gate and norm == "none":
            raise ConfigError("deltanet: gate needs a norm, got norm 'none'")
        self.heads, self.feature_map, self.nu, self.qk_norm = heads, feature_map, nu, qk_norm
        self.key_dim = divide("deltanet", "width", width, "heads", heads) if key_dim is None else key_dim
        self.value_dim = divide("deltanet", "width", width, "heads", heads) if value_dim is None else value_dim
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.sizes = [keys, keys, values]
        self.qkv_proj = Linear(width, sum(self.sizes), bias=False)
        self.conv = None if conv_taps is None else ShortConv(sum(self.sizes), conv_taps, bias=False)
        self.b_proj = Linear(width, heads, bias=False)
        self.gate_proj = Linear(width, values, bias=False) if gate else None
        self.norm = None if norm == "none" else HeadNorm(self.value_dim, kind=norm, gate="silu", eps=norm_eps)
        self.out_proj = Linear(values, width, bias=False)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> DeltaNetState:
        features = feature_maps.feature_size(self.feature_map, self.key_dim, self.nu)
        memory = self._zeros(batch_size, self.heads, features, self.value_dim, dtype=dtype, device=device)
        if self.conv is None:
            return DeltaNetState(None, memory)
        return DeltaNetState(self._zeros(batch_size, *self.conv.state_shape, dtype=dtype, device=device), memory)

    def mix(self, x: Tensor, state: DeltaNetState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, DeltaNetState]:
        conv, memory = (None, None) if state is None else state
        qkv = self.qkv_proj(x)
        if self.conv is not None:
            qkv, conv = self.conv(qkv, conv, cu_seqlens)
        q, k, v = qkv.split_with_sizes(self.sizes, -1)
        values = (self.heads, self.value_dim)
        o, memory = gated_delta(
            self._features(q),
            self._features(k),
            v.unflatten(-1, values),
            wide(self.b_proj(x)).sigmoid(),
            qk_l2norm=self.qk_norm == "l2",
            scale=1.0 if self.qk_norm == "sum" else None,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        if self.norm is not None:
            o = self.norm(o, None if self.gate_proj is None else self.gate_proj(x).unflatten(-1, values))
        return self.out_proj(o.flatten(-2).to(x.dtype)), DeltaNetState(conv, memory)

    def _features(self, x: Tensor) -> Tensor:
        """φ of q or k [B, T, H·key_dim] -> [B, T, H, K], its sum made one where asked for."""
        features = feature_maps.feature_map(self.feature_map, x.unflatten(-1, (self.heads, self.key_dim)), self.nu)
        if self.qk_norm == "sum":
            # All features may be zero (relu, DPFP): such a key writes nothing.
            features = features / (features.sum(-1, keepdim=True) + 1e-6)
        return features
