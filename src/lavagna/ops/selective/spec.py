"""What selective_scan is tested and measured on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, selective_scan

__all__ = ["SPEC"]

#: Exponents and steps whose products run from −1e4 over −87 and −0.1 to 0.
EXTREME_A = (-1e4, -87.0, -1.0, -0.1, 0.0)
EXTREME_DELTA = (0.0, 0.1, 1.0)


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call."""
    B, T, D, N, G = (case.sizes[letter] for letter in "BTDNG")
    shapes = {"timed": (B, T, N), "grouped": (B, T, G, N), "constant": (D, N)}
    parts = case.variant.get("parts", True)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def pick(values: tuple[float, ...], *shape: int) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), shape, generator=generator)].to(dtype)

    extreme = case.variant.get("extreme", False)
    if case.options["dt_softplus"]:
        dt = normal(B, T, D)
    else:
        dt = pick(EXTREME_DELTA, B, T, D) if extreme else normal(B, T, D).abs()
    tensors = {
        "x": normal(B, T, D),
        "dt": dt,
        "A": pick(EXTREME_A, D, N) if extreme else -normal(D, N).exp(),
        "B": normal(*shapes[case.variant.get("write", "timed")]),
        "C": normal(*shapes[case.variant.get("read", "timed")]),
        "D": normal(D) if parts else None,
        "z": normal(B, T, D) if parts else None,
        "dt_bias": normal(D) if parts and case.options["dt_softplus"] else None,
    }
    state = normal(B, D, N).to(torch.float64 if dtype == torch.float64 else torch.float32) if parts else None
    return Inputs(tensors, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    D: int = 8,
    N: int = 4,
    G: int = 2,
    softplus: bool = True,
    limit: tuple[float, float] | None = None,
    chunk_size: int | None = None,
    **variant: object,
) -> Case:
    sizes = {"B": B, "T": T, "D": D, "N": N, "G": G}
    return Case(name, sizes, {"dt_softplus": softplus, "dt_limit": limit, "chunk_size": chunk_size}, variant)


SPEC = OpSpec(
    op="selective_scan",
    function=selective_scan,
    table=TABLE,
    timed=("x", "dt", "B", "C", "z"),
    make=make,
    cases=(
        *(_case(f"T{T}", T) for T in (65, 0, 1, 2, 63, 64, 100)),
        _case("T1000", 1000, B=1, D=2, N=3),
        *(_case(f"D{D}-N{N}", 5, D=D, N=N) for D, N in ((1, 1), (1, 48), (48, 1), (60, 16), (6, 100), (3, 256))),
        _case("bare", 66, softplus=False, parts=False),
        _case("grouped", 66, chunk_size=16, write="grouped", read="grouped"),
        _case("as-many-groups-as-channels", 9, G=8, write="grouped", read="grouped"),
        _case("B-constant", 66, write="constant", softplus=False),
        _case("C-constant-B-grouped", 66, write="grouped", read="constant", limit=(0.3, 1.0)),
        _case("B-C-constant", 66, write="constant", read="constant", limit=(0.3, 1.0)),
        _case("extreme", 100, softplus=False, extreme=True),
        _case("extreme-T1000", 1000, B=1, D=3, N=4, softplus=False, extreme=True),
    ),
    bench=(
        _case("mamba-130m", 1024, B=1, D=1536, N=16, G=1),
        _case("mamba-130m-step", 1, B=1, D=1536, N=16, G=1),
        _case("training", 256, B=8, D=512, N=16, G=1),
        _case("peers", 1024, B=1, D=1024, N=16, G=1),
    ),
    state_shapes=lambda case: (tuple(case.sizes[letter] for letter in "BDN"),),
)
