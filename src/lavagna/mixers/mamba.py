"""Mamba (S6): a state-space model whose step, input and output matrices depend on the token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..ops.constants import constant
from ..ops.selective.api import selective_scan
from .base import Mixer
from .parts.conv import ShortConv
from .parts.gates import dt_bias, negative_exponential
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one

__all__ = ["Mamba", "MambaState"]


class MambaState(NamedTuple):
    """conv [B, W−1, E], the convolution's last inputs; ssm [B, E, N], h."""

    conv: Tensor
    ssm: Tensor


class Mamba(Mixer):
    """S6 on E channels, gated (Gu & Dao 2023, section 3, figure 3).

        x, z = W_in u;  x ← silu(conv(x));  (Δ', B, C) = W_x x;  Δ = softplus(W_Δ Δ' + dt_bias)
        h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t;  y_t = W_out ((C_t h_t + D x_t) ∘ silu(z_t))

    Args:
        width: D, the model's width. E is the inner width here; the paper's E is the factor between them.
        expand: E / D, where inner is not given.
        inner: E; default expand · D.
        state_size: N.
        dt_rank: rank of Δ's projection; default D/16 rounded up.
        conv_taps: W of the short convolution.
        conv_bias: the convolution has a bias.
        bias: in_proj and out_proj have biases.
        selective_dt, selective_B, selective_C: False makes this one a parameter, the same at every token (the
            paper's ablation of selective parameters).
        dt_B_C_norm: RMS-normalise Δ', B and C, as Jamba and FalconMamba do (the latter with weights of one).
        norm_eps: of these norms.

    Parameters: in_proj [2E, D], conv, x_proj [R + 2N, E] (the selective parts alone), dt_proj [E, R], dt_bias [E],
        A_log [E, N], B and C [E, N] where constant, D [E], out_proj [D, E], norms.{dt [R], B [N], C [N]}.

    Initialisation: A = −(1..N) in every channel (S4D-Real); softplus(dt_bias) log-uniform in [1e-3, 1e-1];
        dt_proj uniform in ±R^-0.5; D = 1; a constant B is one and a constant C normal, as in S4D.
    """

    state_class = MambaState
    recurrence = "exp(Δ_t A) ∘ h + Δ_t B_t x_t"
    survives = "a gate per channel and state, from the input"
    published_mlp = None
    inner_option = "inner"

    def __init__(
        self,
        width: int,
        *,
        expand: int = 2,
        inner: int | None = None,
        state_size: int = 16,
        dt_rank: int | None = None,
        conv_taps: int = 4,
        conv_bias: bool = True,
        bias: bool = False,
        selective_dt: bool = True,
        selective_B: bool = True,
        selective_C: bool = True,
        dt_B_C_norm: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(width)
        at_least_one("mamba", expand=expand, inner=inner, state_size=state_size, dt_rank=dt_rank, conv_taps=conv_taps)
        above_zero("mamba", norm_eps=norm_eps)
        inner = expand * width if inner is None else inner
        rank = -(-width // 16) if dt_rank is None else dt_rank
        #: sizes of Δ', B and C in x_proj; 0 for a constant one
        self.sizes = [rank * selective_dt, state_size * selective_B, state_size * selective_C]
        self.in_proj = Linear(width, 2 * inner, bias=bias)
        self.conv = ShortConv(inner, conv_taps, bias=conv_bias)
        self.x_proj = Linear(inner, sum(self.sizes), bias=False) if any(self.sizes) else None
        self.dt_proj = Linear(rank, inner, bias=False) if selective_dt else None
        if self.dt_proj is not None:
            nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        self.dt_bias = nn.Parameter(dt_bias(inner))
        self.A_log = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(inner, 1))
        self.B = None if selective_B else nn.Parameter(torch.ones(inner, state_size))
        self.C = None if selective_C else nn.Parameter(torch.randn(inner, state_size))
        self.D = nn.Parameter(torch.ones(inner))
        names = ("dt", "B", "C") if dt_B_C_norm else ()
        self.norms = nn.ModuleDict(
            {name: HeadNorm(size, eps=norm_eps) for name, size in zip(names, self.sizes, strict=False) if size}
        )
        self.out_proj = Linear(inner, width, bias=bias)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> MambaState:
        return MambaState(
            self._zeros(batch_size, *self.conv.state_shape, dtype=dtype, device=device),
            self._zeros(batch_size, *self.A_log.shape, dtype=dtype, device=device),
        )

    def mix(self, x: Tensor, state: MambaState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, MambaState]:
        conv, ssm = (None, None) if state is None else state
        u, z = self.in_proj(x).chunk(2, -1)
        u, conv = self.conv(u, conv, cu_seqlens)
        dt, B, C = self._coefficients(u)
        y, ssm = selective_scan(
            u,
            dt,
            constant(self.A_log, negative_exponential),
            B,
            C,
            self.D,
            z,
            self.dt_bias,
            dt_softplus=True,
            state=ssm,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        return self.out_proj(y), MambaState(conv, ssm)

    def _coefficients(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Δ before its bias and softplus [B, T, E]; B and C [B, T, N], or [E, N] where constant."""
        parts = (u[..., :0],) * 3 if self.x_proj is None else self.x_proj(u).split_with_sizes(self.sizes, -1)
        if self.norms:
            names = ("dt", "B", "C")
            parts = [self.norms[n](part) if n in self.norms else part for n, part in zip(names, parts, strict=True)]
        dt, B, C = parts
        return (
            u.new_zeros(()).expand_as(u) if self.dt_proj is None else self.dt_proj(dt),
            B if self.B is None else self.B,
            C if self.C is None else self.C,
        )
