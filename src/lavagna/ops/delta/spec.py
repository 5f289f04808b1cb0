"""What gated_delta is tested and measured on."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, gated_delta

__all__ = ["SPEC"]

#: kind of decay -> its shape by letters
DECAYS = {"head": ("HV",), "scalar": ("B", "T", "HV"), "vector": ("B", "T", "HV", "K")}

#: values that extreme decays are drawn from
EXTREMES = (-1e4, -87.0, -0.1, 0.0)


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call.

    Variants: ``decay`` names its kind; ``extreme`` draws it from EXTREMES; ``beta`` names the values to draw β
    from (default: between 0 and 1); ``keys`` is "unit", "zero" (every third is 0) or "same" (two keys, ±, over
    and over); ``state`` False leaves the state out.
    """
    sizes = case.sizes
    B, T, H, HV, K, V = (sizes[letter] for letter in ("B", "T", "H", "HV", "K", "V"))

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def one_of(values: tuple[float, ...], *shape: int) -> Tensor:
        index = torch.randint(len(values), shape, generator=generator)
        return torch.tensor(values, dtype=torch.float64)[index]

    variant = case.variant
    k = F.normalize(normal(B, T, H, K), dim=-1)
    keys = variant.get("keys", "unit")
    if keys == "zero":
        k = k * (torch.arange(T) % 3 > 0)[:, None, None]
    elif keys == "same":
        k = one_of((-1.0, 1.0), B, T, H, 1) * F.normalize(normal(B, 2, H, K), dim=-1)[:, torch.arange(T) % 2]
    log_decay = None
    if "decay" in variant:
        shape = [sizes[letter] for letter in DECAYS[variant["decay"]]]
        log_decay = one_of(EXTREMES, *shape) if variant.get("extreme") else -0.2 * uniform(*shape) ** 2
    tensors = {
        "q": F.normalize(normal(B, T, H, K), dim=-1),
        "k": k,
        "v": normal(B, T, HV, V),
        "beta": one_of(variant["beta"], B, T, HV) if "beta" in variant else uniform(B, T, HV),
        "log_decay": log_decay,
    }
    state = None
    if variant.get("state", True):
        state = normal(B, HV, K, V).to(torch.float64 if dtype == torch.float64 else torch.float32)
    return Inputs({name: t if t is None else t.to(dtype) for name, t in tensors.items()}, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    H: int = 1,
    HV: int = 2,
    K: int = 64,
    V: int = 5,
    options: dict[str, Any] | None = None,
    **variant: Any,
) -> Case:
    return Case(name, {"B": B, "T": T, "H": H, "HV": HV, "K": K, "V": V}, options or {}, variant)


SPEC = OpSpec(
    op="gated_delta",
    function=gated_delta,
    table=TABLE,
    timed=("q", "k", "v", "beta", "log_decay"),
    make=make,
    cases=(
        *(_case(f"T{T}", T, decay="scalar") for T in (0, 1, 2, 63, 64, 65, 100)),
        _case("T1000", 1000, B=1, H=2, decay="scalar"),
        *(_case(f"vector-T{T}", T, K=32, decay="vector") for T in (0, 1, 2, 15, 16, 17, 63, 64, 65, 100)),
        _case("vector-T1000", 1000, B=1, H=2, K=16, V=3, decay="vector"),
        *(_case(f"K{K}", 20, B=1, K=K, V=7, decay="scalar") for K in (1, 2, 3, 48, 60, 100, 128, 256)),
        *(_case(f"vector-K{K}", 20, B=1, K=K, V=7, decay="vector") for K in (1, 2, 3, 48, 60, 100, 128, 256)),
        *(_case(f"vector-V{V}", 40, K=16, V=V, decay="vector") for V in (1, 48, 100)),
        _case("no-decay", 70),
        _case("decay-of-a-head", 70, K=16, decay="head"),
        _case("scalar-extreme", 100, decay="scalar", extreme=True, beta=(0.0, 1.0, 2.0)),
        _case("vector-extreme", 100, decay="vector", extreme=True, beta=(0.0, 1.0, 2.0)),
        _case("beta-1-same-keys", 100, H=2, K=16, beta=(1.0,), keys="same"),
        _case("beta-1-K8", 130, K=8, beta=(1.0,)),  # chunks as long as K
        _case("beta-2", 100, H=2, beta=(2.0,)),
        _case("beta-2-K1", 100, H=2, K=1, beta=(2.0,), keys="same"),
        _case("no-state", 70, K=16, decay="scalar", state=False),
        _case("two-groups", 40, B=1, H=2, HV=4, K=16, decay="vector"),
        _case("qk-l2norm", 70, decay="scalar", options={"qk_l2norm": True, "scale": 1.0}, keys="zero"),
        _case("chunk-4", 70, K=16, decay="vector", options={"chunk_size": 4}),
    ),
    bench=(
        _case("gated-deltanet", 1024, B=1, H=4, HV=4, K=128, V=128, decay="scalar", state=False),
        _case("gated-deltanet-grouped", 1024, B=1, H=2, HV=4, K=128, V=128, decay="scalar", state=False),
        _case("deltanet", 1024, B=1, H=4, HV=4, K=128, V=128, state=False),
        _case("kda", 1024, B=1, H=4, HV=4, K=128, V=128, decay="vector", state=False),
    ),
    state_shapes=lambda case: (tuple(case.sizes[letter] for letter in ("B", "HV", "K", "V")),),
)
