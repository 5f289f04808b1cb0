"""Candidates get the wanted number of parameters, whatever their layers are."""

from __future__ import annotations

import pytest

from lavagna.errors import ConfigError
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.studies.candidates import Candidate, parse_candidates
from lavagna.studies.sizing import TOLERANCE, count_parameters, fit

HYBRIDS = ("3*gated_deltanet+attention", "mamba+attention", "2*mamba2+rwkv6+linear_attention")


def candidate(pattern: str) -> Candidate:
    return parse_candidates(pattern)[0]


@pytest.mark.parametrize(
    ("pattern", "parameters", "depth", "vocab_size"),
    [
        *((pattern, 150_000, 4, 257) for pattern in (*MIXERS, *HYBRIDS)),
        *((pattern, 2_000_000, 6, 1000) for pattern in HYBRIDS),
    ],
)
def test_every_mixer_and_hybrid_meets_the_target(pattern: str, parameters: int, depth: int, vocab_size: int) -> None:
    found = fit(candidate(pattern), parameters=parameters, depth=depth, vocab_size=vocab_size)
    built = sum(p.numel() for p in LanguageModel(found.config, seed=0).parameters())
    assert built == found.parameters == count_parameters(found.config)
    assert abs(built - parameters) <= TOLERANCE * parameters


def test_two_candidates_differ_by_three_percent_at_most() -> None:
    assert (1 + TOLERANCE) / (1 - TOLERANCE) < 1.0305


@pytest.mark.parametrize(
    ("pattern", "depth", "layers"),
    [
        ("attention", 4, 4),
        ("mamba", 4, 8),  # a block without MLP is half a layer
        ("3*gated_deltanet+attention", 4, 4),
        ("3*gated_deltanet+attention", 8, 8),
        ("3*gated_deltanet+attention", 1, 4),  # never less than the pattern
        ("mamba+attention", 3, 4),
        ("2*mamba+attention", 4, 6),
    ],
)
def test_patterns_are_repeated_to_the_depth(pattern: str, depth: int, layers: int) -> None:
    found = fit(candidate(pattern), parameters=300_000, depth=depth, vocab_size=257)
    assert len(found.config.layers) == layers


def test_options_are_kept_and_those_of_others_left_out() -> None:
    options = {
        "mixers": {"attention": {"heads": 2}, "mamba": {"state_size": 8}},
        "mlp": {"attention": "gelu"},
        "mlps": {"swiglu": {"bias": True}, "gelu": {"bias": False}},
        "norm": "layernorm",
    }
    found = fit(candidate("attention"), parameters=100_000, depth=2, vocab_size=257, options=options).config
    assert found.mixers == {"attention": {"heads": 2}}
    assert found.mlp == {"attention": "gelu"}
    assert set(found.mlps) == {"gelu"}
    assert found.mlps["gelu"]["bias"] is False
    assert found.norm == "layernorm"
    found = fit(candidate("mamba"), parameters=100_000, depth=2, vocab_size=257, options=options).config
    assert found.mixers["mamba"]["state_size"] == 8
    assert found.mlps == {}


def test_an_inner_width_that_is_given_is_left_alone() -> None:
    options = {"mlps": {"swiglu": {"hidden": 100}}}
    wanted = LanguageModelConfig.parse({"vocab_size": 257, "width": 56, "layers": "4*attention", **options})
    found = fit(candidate("attention"), parameters=count_parameters(wanted), depth=4, vocab_size=257, options=options)
    assert found.config == wanted


@pytest.mark.parametrize("parameters", [1_000, 2_000])
def test_a_size_that_no_model_has_is_refused(parameters: int) -> None:
    with pytest.raises(ConfigError, match=r"no width of 'attention' gives .* parameters within 1.5 %"):
        fit(candidate("attention"), parameters=parameters, depth=4, vocab_size=257)


def test_unknown_mixers_are_named() -> None:
    with pytest.raises(ConfigError, match="did you mean 'attention'"):
        fit(candidate("atention"), parameters=150_000, depth=4, vocab_size=257)


def test_an_option_that_no_width_allows_is_named() -> None:
    with pytest.raises(ConfigError, match="heads must be at least 1"):
        fit(
            candidate("attention"),
            parameters=150_000,
            depth=4,
            vocab_size=257,
            options={"mixers": {"attention": {"heads": 0}}},
        )
