"""S4D: a state-space model with a fixed diagonal, the rule that Mamba made selective."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..ops.diagonal.api import diagonal_ssm
from .base import Mixer, state_dtype
from .parts.linear import Linear
from .parts.options import at_least_one
from .parts.precision import wide

__all__ = ["S4D", "S4DState"]


class S4DState(NamedTuple):
    """ssm [B, D, n], h: complex, n = N/2; with real=True real, n = N."""

    ssm: Tensor


class S4D(Mixer):
    """A diagonal state-space model for each channel, then a gated product over channels (Gu et al. 2022).

        h_t = Ā ∘ h_{t−1} + B̄ x_t,  Ā = e^{ΔA},  B̄ = (Ā − 1)/A  (B = 1);  y_t = 2 Re Σ C h_t + D x_t
        out = a ∘ σ(b), (a, b) = W_out gelu(y)

    Args:
        width: D.
        state_size: N real numbers a channel: N/2 complex states, one of each conjugate pair, or N real ones.
        real: S4D-Real, A = −(n + 1), y_t = Σ C h_t + D x_t, instead of S4D-Lin, A = −½ + iπn.

    Parameters: log_dt [D], A_log_real [D, n] (the logarithm of −Re A), A_imag [D, n], C [D, n, 2] (real and imaginary
        part; [D, n] if real), D [D], out_proj [2D, D] with bias. n is N/2, or N if real.

    Initialisation: Δ log-uniform in [1e-3, 1e-1]; A as above; C normal; D normal.
    """

    state_class = S4DState
    recurrence = "Ā ∘ h + B̄ x_t, Ā = exp(ΔA), B̄ = (Ā − 1)/A · B"
    survives = "a fixed gate per channel and state"
    published_mlp = None

    def __init__(self, width: int, *, state_size: int = 64, real: bool = False) -> None:
        super().__init__(width)
        at_least_one("s4d", state_size=state_size)
        if not real and state_size % 2:
            raise ConfigError(f"s4d: state_size must be even unless real, got {state_size}")
        self.real = real
        n = torch.arange(state_size if real else state_size // 2, dtype=torch.float32)
        self.log_dt = nn.Parameter(torch.empty(width).uniform_(math.log(1e-3), math.log(1e-1)))
        size = (width, len(n))
        self.A_log_real = nn.Parameter((n + 1 if real else torch.full_like(n, 0.5)).log().repeat(width, 1))
        self.A_imag = None if real else nn.Parameter((math.pi * n).repeat(width, 1))
        # A standard complex normal has variance one half in each part.
        self.C = nn.Parameter(torch.randn(size) if real else torch.randn(*size, 2) * math.sqrt(0.5))
        self.D = nn.Parameter(torch.randn(width))
        self.out_proj = Linear(width, 2 * width)

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> S4DState:
        dtype, device = self._like(dtype, device)
        dtype = state_dtype(dtype) if self.real else state_dtype(dtype).to_complex()
        return S4DState(torch.zeros(batch_size, *self.A_log_real.shape, dtype=dtype, device=device))

    def mix(self, x: Tensor, state: S4DState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, S4DState]:
        A, C = -wide(self.A_log_real).exp(), wide(self.C)
        if self.A_imag is not None:
            A, C = torch.complex(A, wide(self.A_imag)), torch.view_as_complex(C)
        y, ssm = diagonal_ssm(
            x,
            wide(self.log_dt).exp(),
            A,
            torch.ones_like(A),
            C,
            self.D,
            state=None if state is None else state.ssm,
            return_state=True,
            cu_seqlens=cu_seqlens,
        )
        return F.glu(self.out_proj(F.gelu(y)), -1), S4DState(ssm)
