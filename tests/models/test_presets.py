"""Shapes with names."""

from __future__ import annotations

import pytest
import torch

from lavagna.errors import ConfigError
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.models.presets import PUBLISHED, SIZES, preset


def parameters(name: str) -> int:
    """Of the model that a preset gives for bytes, none of them held in memory."""
    with torch.device("meta"):
        model = LanguageModel(LanguageModelConfig.parse({"vocab_size": 257, **preset(name)}))
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "count"), [("gpt2", 124_439_808), ("mamba-130m", 129_135_360), ("mamba2-130m", 128_989_632)]
)
def test_published_shapes_have_the_published_number_of_parameters(name: str, count: int) -> None:
    assert parameters(name) == count


@pytest.mark.parametrize("mixer", MIXERS)
def test_every_mixer_comes_in_every_size(mixer: str) -> None:
    for size, expected in zip(SIZES, (0.15e6, 1e6, 10e6, 100e6), strict=True):
        # S4D's blocks have a sixth of the parameters of a block with an MLP, and count as half of one.
        assert 0.3 < parameters(f"{mixer}-{size}") / expected < 3 / 2


def test_layers_are_repeated_until_the_depth_is_reached() -> None:
    assert preset("attention-tiny")["layers"] == 4 * ("attention",)
    assert preset("mamba-tiny")["layers"] == 8 * ("mamba",)  # a block without MLP is half a block
    assert preset("3*gated_deltanet+attention@small")["layers"] == 2 * (*3 * ("gated_deltanet",), "attention")
    assert preset("3*gated_deltanet+attention@nano")["layers"] == (*3 * ("gated_deltanet",), "attention")


def test_heads_go_to_the_mixers_that_have_them() -> None:
    assert preset("mamba+attention-tiny")["mixers"] == {"attention": {"heads": 4}}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gpt3", "expected a preset .*gpt2.* got 'gpt3'"),
        ("mamba-130mm", "unknown size of a preset '130mm'"),
        ("attention-tyni", "unknown size of a preset 'tyni'; did you mean 'tiny'"),
        ("atention-tiny", "unknown mixer 'atention'; did you mean 'attention'"),
        ("2*-tiny", "expected a mixer's name"),
    ],
)
def test_names_that_are_none_are_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        preset(name)


def test_what_a_preset_gives_is_ones_own() -> None:
    preset("gpt2")["mixers"]["attention"]["heads"] = 1
    assert PUBLISHED["gpt2"]["mixers"]["attention"]["heads"] == 12
