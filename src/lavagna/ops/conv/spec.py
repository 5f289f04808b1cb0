"""What short_conv is tested and measured on."""

from __future__ import annotations

import torch

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, short_conv

__all__ = ["SPEC"]


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call."""
    B, T, D, W = (case.sizes[letter] for letter in "BTDW")

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    state = None
    if case.variant.get("state", True):
        state = normal(B, W - 1, D).to(torch.float64 if dtype == torch.float64 else torch.float32)
    tensors = {
        "x": normal(B, T, D),
        "weight": normal(D, W),
        "bias": normal(D) if case.variant.get("bias", True) else None,
    }
    return Inputs(tensors, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    D: int = 6,
    W: int = 4,
    activation: str | None = "silu",
    **variant: object,
) -> Case:
    return Case(name, {"B": B, "T": T, "D": D, "W": W}, {"activation": activation}, variant)


SPEC = OpSpec(
    op="short_conv",
    function=short_conv,
    table=TABLE,
    timed=("x",),
    make=make,
    cases=(
        *(_case(f"T{T}", T) for T in (0, 1, 2, 63, 64, 65, 100)),
        _case("T1000", 1000, B=1),
        *(_case(f"W{W}", 9, W=W) for W in (1, 2, 3, 8)),
        _case("no-bias", 10, bias=False),
        _case("no-activation", 10, activation=None),
        _case("no-state", 10, state=False),
        *(_case(f"D{D}", 5, D=D) for D in (1, 48, 100)),
    ),
    bench=(_case("mamba-130m", 1024, B=1, D=1536, state=False),),
    state_shapes=lambda case: ((case.sizes["B"], case.sizes["W"] - 1, case.sizes["D"]),),
)
