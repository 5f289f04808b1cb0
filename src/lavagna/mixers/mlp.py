"""The MLPs that mix channels, token by token: they carry no state."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ConfigError
from .base import Mixer
from .parts.linear import Linear
from .parts.options import at_least_one

__all__ = ["GeluMLP", "ReluMLP", "SwiGLU"]


class _Stateless(Mixer):
    """A layer that looks at one token alone."""

    inner_option = "hidden"

    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> None:
        return None

    def mix(self, x: Tensor, state: Any, cu_seqlens: Tensor | None) -> tuple[Tensor, None]:
        return self.transform(x), None

    def transform(self, x: Tensor) -> Tensor:
        """[..., D] -> [..., D]."""
        raise NotImplementedError


class ReluMLP(_Stateless):
    """y = W2 relu(W1 x + b1) + b2 (Vaswani et al. 2017, section 3.3).

    Args:
        width: D.
        hidden: width between the two products; default 4 D.
        bias: with b1 and b2.

    Parameters: in_proj [hidden, D], out_proj [D, hidden].
    """

    def __init__(self, width: int, *, hidden: int | None = None, bias: bool = True) -> None:
        super().__init__(width)
        at_least_one("mlp", hidden=hidden)
        hidden = 4 * width if hidden is None else hidden
        self.in_proj = Linear(width, hidden, bias=bias)
        self.out_proj = Linear(hidden, width, bias=bias)

    def transform(self, x: Tensor) -> Tensor:
        return self.out_proj(F.relu(self.in_proj(x)))


class GeluMLP(ReluMLP):
    """y = W2 gelu(W1 x + b1) + b2 (Hendrycks & Gimpel 2016, with the tanh of GPT-2 by ``approximate``).

    Args:
        width: D.
        hidden: width between the two products; default 4 D.
        bias: with b1 and b2.
        approximate: "none" for the exact function, "tanh" as GPT-2 has it.

    Parameters: in_proj [hidden, D], out_proj [D, hidden].
    """

    def __init__(self, width: int, *, hidden: int | None = None, bias: bool = True, approximate: str = "tanh") -> None:
        super().__init__(width, hidden=hidden, bias=bias)
        if approximate not in ("none", "tanh"):
            raise ConfigError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
        self.approximate = approximate

    def transform(self, x: Tensor) -> Tensor:
        return self.out_proj(F.gelu(self.in_proj(x), approximate=self.approximate))


class SwiGLU(_Stateless):
    """y = W2 (silu(Wg x) ∘ W1 x) (Shazeer 2020).

    Args:
        width: D.
        hidden: width between the products; default 8/3 D rounded up to a multiple of 8, which has the
            parameters of a two-matrix MLP of 4 D.
        bias: with biases.

    Parameters: gate_proj [hidden, D], in_proj [hidden, D], out_proj [D, hidden].
    """

    def __init__(self, width: int, *, hidden: int | None = None, bias: bool = False) -> None:
        super().__init__(width)
        at_least_one("mlp", hidden=hidden)
        hidden = -(-8 * width // 3 // 8) * 8 if hidden is None else hidden
        self.gate_proj = Linear(width, hidden, bias=bias)
        self.in_proj = Linear(width, hidden, bias=bias)
        self.out_proj = Linear(hidden, width, bias=bias)

    def transform(self, x: Tensor) -> Tensor:
        return self.out_proj(F.silu(self.gate_proj(x)) * self.in_proj(x))
