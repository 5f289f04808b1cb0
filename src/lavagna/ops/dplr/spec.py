"""What generalized_delta is tested and measured on."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, generalized_delta

__all__ = ["SPEC"]

#: values that extreme decays are drawn from
EXTREMES = (-1e4, -87.0, -0.1, 0.0)


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call.

    Variants: ``extreme`` draws decays from EXTREMES; ``rate`` names the values to draw η from (default: between 0
    and 1); ``free`` draws a and b as they come instead of RWKV-7's −κ and κ ∘ η; ``state`` False leaves the state out.
    """
    B, T, H, K, V = (case.sizes[letter] for letter in ("B", "T", "H", "K", "V"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def one_of(values: tuple[float, ...], *shape: int) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)[torch.randint(len(values), shape, generator=generator)]

    variant = case.variant
    kappa = F.normalize(normal(B, T, H, K), dim=-1)
    eta = one_of(variant["rate"], B, T, H, K) if "rate" in variant else uniform(B, T, H, K)
    a, b = -kappa, kappa * eta
    if variant.get("free"):
        a, b = normal(B, T, H, K) / K, normal(B, T, H, K) / 4
    tensors = {
        "q": F.normalize(normal(B, T, H, K), dim=-1),
        "k": F.normalize(normal(B, T, H, K), dim=-1),
        "v": normal(B, T, H, V),
        "a": a,
        "b": b,
        "log_decay": one_of(EXTREMES, B, T, H, K) if variant.get("extreme") else -0.2 * uniform(B, T, H, K) ** 2,
    }
    state = None
    if variant.get("state", True):
        state = normal(B, H, K, V).to(torch.float64 if dtype == torch.float64 else torch.float32)
    return Inputs({name: t.to(dtype) for name, t in tensors.items()}, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    H: int = 2,
    K: int = 64,
    V: int = 5,
    options: dict[str, Any] | None = None,
    **variant: Any,
) -> Case:
    return Case(name, {"B": B, "T": T, "H": H, "K": K, "V": V}, options or {}, variant)


SPEC = OpSpec(
    op="generalized_delta",
    function=generalized_delta,
    table=TABLE,
    timed=("q", "k", "v", "a", "b", "log_decay"),
    make=make,
    cases=(
        *(_case(f"T{T}", T) for T in (0, 1, 2, 15, 16, 17, 63, 64, 65, 100)),
        _case("T1000", 1000, B=1, K=32, V=3),
        *(_case(f"K{K}", 20, B=1, K=K, V=7) for K in (1, 2, 3, 48, 60, 100, 128, 256)),
        *(_case(f"V{V}", 40, K=16, V=V) for V in (1, 48, 100)),
        _case("extreme", 24, K=16, extreme=True, rate=(0.0, 1.0)),
        _case("rate-1-K8", 130, K=8, rate=(1.0,)),  # chunks as long as K
        _case("free", 40, K=32, free=True),
        _case("no-state", 70, K=16, state=False),
        _case("scale-and-chunk", 70, K=16, options={"scale": 1.0, "chunk_size": 4}),
    ),
    bench=(_case("rwkv7-0.1b", 1024, B=1, H=12, K=64, V=64, state=False, options={"scale": 1.0}),),
    state_shapes=lambda case: (tuple(case.sizes[letter] for letter in ("B", "H", "K", "V")),),
)
