"""The comparison that the contracts of mixers and models stand on."""

from __future__ import annotations

import pytest
import torch

from .contracts import agree

EXACT = {"output": torch.tensor([1.0, -2.0]).double(), "d output / d bias": torch.tensor([1e-6, 0.0]).double()}


def off(name: str, by: float) -> dict[str, torch.Tensor]:
    """The exact answer with one tensor off by so much."""
    return {**EXACT, name: EXACT[name] + by}


@pytest.mark.parametrize(("name", "by"), [("output", 1e-9), ("d output / d bias", 1e-11)])
def test_a_small_tensor_is_held_to_its_own_size(name: str, by: float) -> None:
    with pytest.raises(AssertionError, match=rf"{name}: difference .*, allowed "):
        agree(off(name, by), EXACT)


def test_what_is_zero_by_mathematics_may_be_rounding() -> None:
    agree(off("d output / d bias", 1e-15), EXACT)


def test_counts_do_not_loosen_the_bound() -> None:
    seen = {"state.seen": torch.tensor([1000, 1000])}
    with pytest.raises(AssertionError, match="d output / d bias: difference"):
        agree(off("d output / d bias", 1e-11) | seen, EXACT | seen)
