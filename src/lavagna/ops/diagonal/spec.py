"""What diagonal_ssm is tested and measured on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, diagonal_ssm

__all__ = ["SPEC"]


#: real parts of A, over the states in turn; S4D-Lin's own are −½
RATES = {
    "lin": (-0.5,),
    "extreme": (0.0, -0.1, -87.0, -1e4),
    "near-zero": (0.0, -1e-12, -1e-6, -1e-3),
}


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call.

    Variants: `rates` of A; `real` parameters instead of complex ones; `skip` D; `state`.
    """
    B, T, D, N = (case.sizes[letter] for letter in "BTDN")
    rates, real = case.variant.get("rates", "lin"), case.variant.get("real", False)
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def numbers(*shape: int) -> Tensor:
        """Real or complex, as the parameters and the state are."""
        return normal(*shape) if real else torch.complex(normal(*shape), normal(*shape))

    def cast(x: Tensor, to: torch.dtype) -> Tensor:
        if x.is_complex():
            return x.to(torch.complex128 if wide == torch.float64 else torch.complex64)
        return x.to(to)

    A = torch.tensor([RATES[rates][n % len(RATES[rates])] for n in range(N)], dtype=torch.float64).repeat(D, 1)
    dt = torch.ones(D, dtype=torch.float64)
    if rates == "lin":  # Δ log-uniform from 1e-3 to 1e-1, as published
        dt = torch.exp(math.log(1e-3) + math.log(100) * torch.rand(D, generator=generator, dtype=torch.float64))
    if not real:
        frequency = 1e-3 if rates == "near-zero" else math.pi
        A = torch.complex(A, frequency * torch.arange(N, dtype=torch.float64).repeat(D, 1))
    tensors: dict[str, Tensor | None] = {
        "x": normal(B, T, D).to(dtype),
        "dt": dt.to(dtype),
        "A": cast(A, dtype),
        "B": cast(numbers(D, N), dtype),
        "C": cast(numbers(D, N), dtype),
        "D": normal(D).to(dtype) if case.variant.get("skip", True) else None,
    }
    state = cast(numbers(B, D, N), wide) if case.variant.get("state", True) else None
    return Inputs(tensors, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    D: int = 3,
    N: int = 4,
    options: dict[str, object] | None = None,
    **variant: object,
) -> Case:
    return Case(name, {"B": B, "T": T, "D": D, "N": N}, options or {}, variant)


SPEC = OpSpec(
    op="diagonal_ssm",
    function=diagonal_ssm,
    table=TABLE,
    timed=("x",),
    make=make,
    cases=(
        *(_case(f"T{T}", T) for T in (0, 1, 2, 63, 64, 65, 100)),
        _case("T1000", 1000, B=1),
        *(_case(f"N{N}", 10, N=N) for N in (1, 5, 32)),
        *(_case(f"D{D}", 5, D=D) for D in (1, 48, 100)),
        _case("real", 70, real=True),
        *(_case(f"extreme-{kind}", 70, rates="extreme", real=kind == "real") for kind in ("complex", "real")),
        *(_case(f"near-zero-{kind}", 70, rates="near-zero", real=kind == "real") for kind in ("complex", "real")),
        _case("no-skip", 10, skip=False),
        _case("no-state", 70, state=False),
        *(_case(f"chunk-{size}", 12, options={"chunk_size": size}) for size in (1, 5)),
    ),
    bench=(_case("s4d-path", 1024, B=8, D=256, N=32, state=False), _case("s4d-step", 1, B=1, D=512, N=32)),
    state_shapes=lambda case: (tuple(case.sizes[letter] for letter in "BDN"),),
)
