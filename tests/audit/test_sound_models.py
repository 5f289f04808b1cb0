"""Sound models pass: every registered mixer, hybrids, and options that change what a check sees."""

from __future__ import annotations

from typing import Any

import pytest

from lavagna.audit import Status, assert_sound, audit
from lavagna.mixers import MIXERS, build
from lavagna.models import Classifier, ClassifierConfig, LanguageModel, LanguageModelConfig

#: options that make a mixer small
SMALL: dict[str, dict[str, Any]] = {"mamba2": {"state_size": 8, "head_dim": 8}, "mamba": {"state_size": 4}}


def model(layers: str, **keys: Any) -> LanguageModel:
    mixers = {name: options for name, options in SMALL.items() if name in layers.split("+")}
    config = {"vocab_size": 29, "width": 16, "layers": layers, "mixers": mixers, **keys}
    return LanguageModel(LanguageModelConfig.parse(config), seed=0)


@pytest.mark.parametrize("name", MIXERS)
def test_every_mixer_is_sound(name: str) -> None:
    assert_sound(model(name), max_tokens=140)


@pytest.mark.parametrize(
    ("layers", "keys"),
    [
        ("gated_deltanet+attention", {"norm": "layernorm", "norm_position": "post"}),
        ("attention", {"mixers": {"attention": {"kv_heads": 2, "window": 40, "gate": True}}, "tied": False}),
        ("attention", {"mixers": {"attention": {"position": "none"}}, "position": "sinusoidal", "mlp": "gelu"}),
    ],
)
def test_hybrids_and_options_are_sound(layers: str, keys: dict[str, Any]) -> None:
    assert_sound(model(layers, **keys), max_tokens=140)


def test_the_end_of_learned_positions_is_known() -> None:
    report = audit(model("attention", mixers={"attention": {"position": "none"}}, position="learned", max_positions=80))
    assert report.passed, str(report)
    assert report.facts["longest"] == "no more than 80 tokens"


def test_a_whole_audit_of_a_recurrent_model() -> None:
    report = audit(model("mamba"))
    assert report.passed, str(report)
    grows = report["state-grows"]
    assert grows.measured == 0
    assert grows.example is not None
    assert grows.example.tokens == 16384
    assert report["scale"].status is Status.NOT_APPLICABLE
    assert report["scale"].reason == "no softmax over tokens was seen"


def test_a_mixer_by_itself() -> None:
    report = audit(build("gla", 16), max_tokens=140)
    assert report.passed, str(report)
    assert report.facts["input"] == "reads vectors of 16"


def test_a_classifier_by_what_its_head_reads() -> None:
    config = ClassifierConfig.parse({"vocab_size": 29, "width": 16, "layers": "gla", "tied": False, "classes": 3})
    report = audit(Classifier(config, seed=0), max_tokens=140, allow=["untrained"])
    assert report.passed, str(report)
    assert "head.weight" in report["untrained"].reason


@pytest.mark.parametrize(
    ("keys", "failed"),
    [
        ({"mixers": {"attention": {"position": "none"}}}, {"no-position"}),
        ({"mixers": {"attention": {"causal": False}}}, {"future-leak"}),
    ],
)
def test_what_an_option_gives_up_is_seen(keys: dict[str, Any], failed: set[str]) -> None:
    report = audit(model("attention", **keys), max_tokens=140)
    assert {finding.trap for finding in report.failures} == failed
