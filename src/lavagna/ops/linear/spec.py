"""What gated_linear is tested and measured on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..spec import Case, Inputs, OpSpec
from .api import TABLE, LinearState, gated_linear

__all__ = ["SPEC"]

#: log decays that forget everything, nearly everything, little and nothing, side by side
EXTREME = (-1e4, -87.0, -0.1, 0.0)


def make(case: Case, generator: torch.Generator, dtype: torch.dtype) -> Inputs:
    """Draw one call; variant: gate None | constant | scalar | channel, extreme, bonus, state."""
    B, T, H, HV, K, V = (case.sizes[letter] for letter in ("B", "T", "H", "HV", "K", "V"))
    normalizer = case.options.get("normalizer", False)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def feature(*shape: int) -> Tensor:
        return normal(*shape).abs() + 0.1 if normalizer else normal(*shape)

    shapes = {"constant": (HV,), "scalar": (B, T, HV), "channel": (B, T, HV, K)}
    log_decay = None
    if case.variant["gate"] is not None:
        shape = shapes[case.variant["gate"]]
        if case.variant["extreme"]:
            log_decay = torch.tensor(EXTREME)[torch.randint(4, shape, generator=generator)].to(dtype)
        else:
            log_decay = -0.3 * normal(*shape).square()
    tensors = {
        "q": feature(B, T, H, K),
        "k": feature(B, T, H, K),
        "v": normal(B, T, HV, V),
        "log_decay": log_decay,
        "bonus": feature(HV, K) if case.variant["bonus"] else None,
    }
    state = None
    if case.variant["state"]:
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        S = normal(B, HV, K, V).to(kept)
        state = LinearState(S, feature(B, HV, K).to(kept)) if normalizer else S
    return Inputs(tensors, dict(case.options), state)


def _case(
    name: str,
    T: int,
    gate: str | None,
    *,
    B: int = 2,
    H: int = 1,
    HV: int = 2,
    K: int = 3,
    V: int = 5,
    extreme: bool = False,
    bonus: bool = False,
    state: bool = True,
    **options: object,
) -> Case:
    sizes = {"B": B, "T": T, "H": H, "HV": HV, "K": K, "V": V}
    return Case(name, sizes, options, {"gate": gate, "extreme": extreme, "bonus": bonus, "state": state})


#: key and value dimensions that are no power of two, one, or large
DIMS = ((1, 3), (3, 1), (4, 4), (48, 5), (60, 5), (5, 60), (64, 2), (100, 2), (2, 100), (128, 3), (256, 2))

SPEC = OpSpec(
    op="gated_linear",
    function=gated_linear,
    table=TABLE,
    timed=("q", "k", "v", "log_decay"),
    make=make,
    cases=(
        *(_case(f"scalar-T{T}", T, "scalar") for T in (65, 0, 1, 2, 63, 64)),
        *(_case(f"channel-T{T}", T, "channel") for T in (65, 0, 1, 2, 63, 64)),
        *(_case(f"scalar-K{K}-V{V}", 5, "scalar", B=1, HV=1, K=K, V=V) for K, V in DIMS),
        *(_case(f"channel-K{K}-V{V}", 5, "channel", B=1, HV=1, K=K, V=V) for K, V in DIMS),
        _case("linear-attention", 100, None, H=2),
        _case("linear-attention-normalized", 100, None, normalizer=True),
        _case("retnet", 100, "constant", H=2),
        _case("retnet-T1000", 1000, "constant", B=1),
        _case("mamba2", 100, "scalar", H=2, HV=4, scale=1.0),
        _case("gla", 100, "channel", H=2),
        _case("gla-T1000", 1000, "channel", B=1, HV=1),
        _case("rwkv6", 100, "channel", H=2, bonus=True, scale=1.0),
        _case("no-state", 33, "channel", H=2, state=False),
        _case("scalar-extreme", 100, "scalar", extreme=True),
        _case("scalar-extreme-T1000", 1000, "scalar", B=1, HV=1, extreme=True),
        _case("channel-extreme", 100, "channel", extreme=True),
        _case("channel-extreme-T1000", 1000, "channel", B=1, HV=1, extreme=True),
        _case("rwkv6-extreme", 100, "channel", H=2, extreme=True, bonus=True),
        _case("constant-extreme", 40, "constant", HV=4, extreme=True),
        # A constant decay's gradient is one sum over all tokens: several heads, or chance alone sets its size.
        _case("constant-bonus-normalized", 20, "constant", H=4, HV=8, bonus=True, normalizer=True),
        _case("scalar-bonus", 40, "scalar", H=2, HV=4, bonus=True),
        _case("scalar-normalized", 40, "scalar", normalizer=True),
        _case("ungated-bonus", 40, None, bonus=True),
        _case("channel-chunks-of-7", 40, "channel", chunk_size=7, normalizer=True),
        _case("scalar-chunks-of-64", 100, "scalar", chunk_size=64),
    ),
    bench=(
        _case("linear-attention", 1024, None, B=1, H=8, HV=8, K=64, V=64, state=False, normalizer=True),
        _case("retnet-1.3b", 1024, "constant", B=1, H=8, HV=8, K=256, V=512, state=False),
        _case("mamba2-130m", 1024, "scalar", B=1, H=1, HV=24, K=128, V=64, state=False, scale=1.0),
        _case("mamba2-peers", 1024, "scalar", B=1, H=1, HV=64, K=128, V=64, state=False, scale=1.0),
        _case("mamba2-step", 1, "scalar", B=1, H=1, HV=24, K=128, V=64, scale=1.0),
        _case("gla-340m", 1024, "channel", B=1, H=4, HV=4, K=128, V=256, state=False),
        _case("gla-step", 1, "channel", B=1, H=4, HV=4, K=128, V=256),
        _case("rwkv6-1.6b", 1024, "channel", B=1, H=32, HV=32, K=64, V=64, bonus=True, state=False, scale=1.0),
        _case("training", 256, "channel", B=8, H=4, HV=4, K=32, V=32, state=False),
    ),
    state_shapes=lambda case: tuple(
        tuple(case.sizes[letter] for letter in letters)
        for letters in (
            (("B", "HV", "K", "V"), ("B", "HV", "K")) if case.options.get("normalizer") else (("B", "HV", "K", "V"),)
        )
    ),
)
