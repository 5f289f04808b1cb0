"""Mamba-2 (SSD): a state-space model with one decay a head, which makes it a gated linear attention."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..ops.constants import constant
from ..ops.linear.api import gated_linear
from .base import Mixer
from .parts.conv import ShortConv
from .parts.gates import dt_bias, negative_exponential
from .parts.linear import Linear
from .parts.norms import HeadNorm
from .parts.options import above_zero, at_least_one, divide
from .parts.precision import wide

__all__ = ["Mamba2", "Mamba2State"]


class Mamba2State(NamedTuple):
    """conv [B, W−1, E + 2·G·N], the convolution's last inputs; memory [B, HV, N, V], S (written by B, read by C)."""

    conv: Tensor
    memory: Tensor


class Mamba2(Mixer):
    """SSD on E channels in HV = E/V heads (Dao & Gu 2024, section 7 and figure 6, the parallel block).

        (z, x, B, C, Δ') = W_in u;  (x, B, C) ← silu(conv(x, B, C));  Δ = clamp(softplus(Δ' + dt_bias), dt_limit)
        S_t = exp(−Δ_t exp(A_log)) S_{t−1} + B_t (Δ_t x_t)ᵀ;  y_t = S_tᵀ C_t + D x_t
        out = W_out RMSNorm(y ∘ silu(z)), the mean square taken over each of the G groups alone

    Args:
        width: D of the model.
        expand: E / D, where inner is not given.
        inner: E; default expand · D.
        head_dim: V (the paper's P); default 64, or the largest divisor of E below.
        state_size: N, which is K here.
        groups: G, how many B and C there are; head h uses group h // (HV/G).
        conv_taps: W of the short convolution.
        conv_bias: the convolution has a bias.
        bias: in_proj and out_proj have biases.
        dt_limit: (low, high) to which Δ is clamped, in long passes and in single steps; None for (0, ∞).
        norm_before_gate: RMSNorm(y) ∘ silu(z) instead.
        norm_eps: of that norm.

    Parameters: in_proj [2E + 2·G·N + HV, D] (z, x, B, C, Δ' in this order), conv, dt_bias, A_log and D [HV],
        norm [G, E/G], out_proj [D, E].

    Initialisation: exp(A_log) uniform in [1, 16]; softplus(dt_bias) log-uniform in [1e-3, 1e-1]; D = 1.
    """

    state_class = Mamba2State
    recurrence = "α_t S + k vᵀ, v = Δ_t x_t"
    survives = "a scalar per head, from the input"
    published_mlp = None
    inner_option = "inner"

    def __init__(
        self,
        width: int,
        *,
        expand: int = 2,
        inner: int | None = None,
        head_dim: int | None = None,
        state_size: int = 128,
        groups: int = 1,
        conv_taps: int = 4,
        conv_bias: bool = True,
        bias: bool = False,
        dt_limit: tuple[float, float] | None = None,
        norm_before_gate: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(width)
        at_least_one("mamba2", expand=expand, inner=inner, head_dim=head_dim, state_size=state_size)
        at_least_one("mamba2", groups=groups, conv_taps=conv_taps)
        above_zero("mamba2", norm_eps=norm_eps)
        inner = expand * width if inner is None else inner
        if head_dim is None:
            head_dim = next(size for size in range(min(64, inner), 0, -1) if inner % size == 0)
        heads = divide("mamba2", "inner", inner, "head_dim", head_dim)
        divide("mamba2", "inner / head_dim", heads, "groups", groups)
        if dt_limit is not None and not 0 <= dt_limit[0] <= dt_limit[1]:
            raise ConfigError(f"mamba2: dt_limit must be (low, high) with 0 <= low <= high, got {dt_limit}")
        self.heads, self.head_dim, self.groups, self.state_size = heads, head_dim, groups, state_size
        self.dt_limit = (0.0, math.inf) if dt_limit is None else dt_limit
        shared = groups * state_size
        self.conv_sizes = [inner, shared, shared]
        self.sizes = [inner, sum(self.conv_sizes), heads]
        self.in_proj = Linear(width, sum(self.sizes), bias=bias)
        self.conv = ShortConv(sum(self.conv_sizes), conv_taps, bias=conv_bias)
        self.dt_bias = nn.Parameter(dt_bias(heads))
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = HeadNorm(inner // groups, heads=groups, gate_first=not norm_before_gate, eps=norm_eps)
        self.out_proj = Linear(inner, width, bias=bias)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Mamba2State:
        memory = (batch_size, self.heads, self.state_size, self.head_dim)
        return Mamba2State(
            self._zeros(batch_size, *self.conv.state_shape, dtype=dtype, device=device),
            self._zeros(*memory, dtype=dtype, device=device),
        )

    def mix(self, x: Tensor, state: Mamba2State | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Mamba2State]:
        conv, memory = (None, None) if state is None else state
        z, u, dt = self.in_proj(x).split_with_sizes(self.sizes, -1)
        u, conv = self.conv(u, conv, cu_seqlens)
        u, B, C = u.split_with_sizes(self.conv_sizes, -1)
        u = u.unflatten(-1, (self.heads, self.head_dim))
        dt = F.softplus(wide(dt) + wide(self.dt_bias)).clamp(*self.dt_limit)
        y, memory = gated_linear(
            C.unflatten(-1, (self.groups, self.state_size)),
            B.unflatten(-1, (self.groups, self.state_size)),
            u * dt[..., None],
            dt * constant(self.A_log, negative_exponential),
            scale=1.0,
            state=memory,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        y = y + u * self.D[:, None]
        by_group = (self.groups, self.norm.size)
        y = self.norm(y.flatten(-2).unflatten(-1, by_group), z.unflatten(-1, by_group))
        return self.out_proj(y.flatten(-2).to(x.dtype)), Mamba2State(conv, memory)
