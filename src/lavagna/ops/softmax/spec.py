"""What attention is tested and measured on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, attention
from .cache import KVCache

__all__ = ["SPEC"]


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call.

    Variants: `ragged` rows have read different numbers of tokens before; `mask` draws a token_mask; `loud` is a
    factor of the queries.
    """
    B, T, H, G, K, V, S = (case.sizes[letter] for letter in ("B", "T", "H", "G", "K", "V", "S"))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    tensors: dict[str, Tensor | None] = {
        "q": normal(B, T, H, K) * case.variant.get("loud", 1),
        "k": normal(B, T, G, K),
        "v": normal(B, T, G, V),
    }
    if case.variant.get("mask"):
        tensors["token_mask"] = torch.rand(B, T, generator=generator) < 0.7
    state = None
    if S:
        seen = torch.tensor([S - 2 * (b % 3) if case.variant.get("ragged") else S for b in range(B)])
        real = (torch.arange(S) < seen[:, None])[..., None, None]
        state = KVCache(torch.where(real, normal(B, S, G, K), 0), torch.where(real, normal(B, S, G, V), 0), seen.long())
    return Inputs(tensors, dict(case.options), state)


def _case(
    name: str,
    T: int,
    *,
    B: int = 2,
    H: int = 4,
    G: int = 2,
    K: int = 8,
    V: int = 8,
    S: int = 5,
    options: dict[str, object] | None = None,
    **variant: object,
) -> Case:
    return Case(name, {"B": B, "T": T, "H": H, "G": G, "K": K, "V": V, "S": S}, options or {}, variant)


SPEC = OpSpec(
    op="attention",
    function=attention,
    table=TABLE,
    timed=("q", "k", "v", "token_mask"),
    make=make,
    cases=(
        *(_case(f"T{T}", T) for T in (0, 1, 2, 63, 64, 65, 100)),
        _case("T1000", 1000, B=1, H=1, G=1, S=0),
        *(_case(f"no-state-T{T}", T, S=0) for T in (1, 2, 65)),
        *(_case(f"K{K}", 10, K=K, V=K) for K in (1, 48, 60, 64, 100, 128, 256)),
        *(_case(f"K{K}-V{V}-S{S}", 10, K=K, V=V, S=S) for K, V, S in ((12, 20, 5), (20, 12, 5), (12, 20, 0))),
        _case("multi-head", 20, G=4),
        _case("multi-query", 20, G=1),
        _case("ragged", 20, B=3, ragged=True),
        _case("ragged-step", 1, B=3, ragged=True),
        _case("mask", 40, B=3, mask=True),
        _case("mask-no-state", 40, B=3, S=0, mask=True),
        _case("window-5", 20, options={"window": 5}),
        _case("window-5-step", 1, options={"window": 5}),
        _case("window-5-no-state", 200, B=1, S=0, options={"window": 5}),
        _case("window-70", 150, B=1, S=80, options={"window": 70}),
        _case("window-ragged-mask", 30, B=3, options={"window": 5}, ragged=True, mask=True),
        _case("loud", 20, loud=4),
        _case("scale", 20, options={"scale": 0.5}),
        _case("all-at-once", 20, S=0, options={"causal": False}),
        _case("all-at-once-mask", 20, B=3, S=0, options={"causal": False}, mask=True),
        _case("all-see-all", 20, S=0, options={"causal": False}),
        _case("all-see-all-mask", 20, S=0, options={"causal": False}, mask=True),
    ),
    bench=(
        _case("prefill-1b", 2048, B=1, H=32, G=8, K=64, V=64, S=0),
        _case("step-1b", 1, B=1, H=32, G=8, K=64, V=64, S=8192),
    ),
    state_shapes=None,
)
