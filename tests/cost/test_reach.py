"""Steps and paths of each kind of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lavagna.cost import plan
from lavagna.cost.reach import Reach, reach
from lavagna.mixers import MIXERS, build
from lavagna.models import LanguageModelConfig


def reach_of(name: str, **options: Any) -> Reach:
    with torch.device("meta"):
        return reach(build(name, 16, options))


def test_attention_sees_every_token_at_once() -> None:
    found = reach_of("attention")
    assert (found.full, found.generates) == (None, True)
    assert [found.path(tokens) for tokens in (2, 1000, 1_000_000)] == [1, 1, 1]


def test_attention_without_causality_carries_nothing() -> None:
    found = reach_of("attention", causal=False)
    assert (found.full, found.generates, found.path(1000)) == (None, False, 1)


@pytest.mark.parametrize("window", [2, 3, 100, 4096])
def test_a_window_is_passed_from_layer_to_layer(window: int) -> None:
    found = reach_of("attention", window=window)
    assert found.full == window - 1
    assert f"{window - 1:,} tokens" in found.why
    # From the last token to the first, as far as a layer goes each time.
    for tokens in (2, window, window + 1, 10_000):
        here, layers = tokens - 1, 0
        while here > 0:
            here, layers = here - (window - 1), layers + 1
        assert found.path(tokens) == layers


def test_a_window_of_one_reaches_nothing() -> None:
    found = reach_of("attention", window=1)
    assert found.path(10) is None
    assert "itself alone" in found.why


@pytest.mark.parametrize("name", sorted(set(MIXERS) - {"attention"}))
def test_a_state_is_passed_from_token_to_token(name: str) -> None:
    found = reach_of(name)
    assert (found.full, found.generates, found.path(1000)) == (0, True, 999)


def steps(name: str, *contexts: int) -> list[int]:
    config = LanguageModelConfig.parse({"vocab_size": 5, "width": 64, "layers": name})
    (layer,) = plan(config, contexts).layers
    return [at.steps for at in layer.at.values()]


def test_attention_takes_as_many_steps_for_any_context() -> None:
    few, many = steps("attention", 400, 1_000_000)
    assert few == many < 50


@pytest.mark.parametrize("name", sorted(set(MIXERS) - {"attention"}))
def test_recurrences_take_steps_in_proportion(name: str) -> None:
    one, two, three = steps(name, *(n * 2**17 for n in (1, 2, 3)))  # whole chunks
    assert three - two == two - one > 0


def test_a_scan_takes_every_token_one_by_one() -> None:
    one, two = steps("mamba", 100_000, 200_000)
    assert 100_000 <= two - one <= 1.1 * 100_000


def test_chunks_make_steps_fewer() -> None:
    """gated_linear hands its state on in one operation a chunk, and its chunks at K = V = 16 have 16 tokens."""
    one, two = steps("linear_attention", 160_000, 320_000)
    assert two - one == 160_000 // 16
