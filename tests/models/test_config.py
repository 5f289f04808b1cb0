"""Every key of a model's configuration is known, every value is checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lavagna.errors import ConfigError
from lavagna.models import ClassifierConfig, LanguageModelConfig

GOOD: dict[str, Any] = {"vocab_size": 7, "width": 16, "layers": "2*gated_deltanet+attention"}


def test_layers_are_expanded_when_read() -> None:
    assert LanguageModelConfig.parse(GOOD).layers == ("gated_deltanet", "gated_deltanet", "attention")
    assert LanguageModelConfig.parse({**GOOD, "layers": ["mamba"]}).layers == ("mamba",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widht": 16}, r"unknown key of \[model\] 'widht'; did you mean 'width'\?"),
        ({"vocab_size": None}, r"\[model\]: vocab_size"),
        ({"width": "wide"}, r"\[model\]: width: .*got 'wide'"),
        ({"width": 0}, r"\[model\]: width: must be at least 1, got 0"),
        ({"vocab_size": -1}, r"\[model\]: vocab_size: must be at least 1, got -1"),
        ({"layers": []}, "expected at least one layer, got none"),
        ({"layers": "gated_deltanett"}, "unknown mixer 'gated_deltanett'; did you mean 'gated_deltanet'"),
        ({"mixers": {"gated_deltanet": {"head": 2}}}, "unknown option of gated_deltanet 'head'; did you mean 'heads'"),
        ({"mixers": {"gated_deltanet": {"heads": "two"}}}, "gated_deltanet: option heads: .*got 'two'"),
        ({"mixers": {"mamba": {}}}, "mixers has options for 'mamba', which is none of the layers"),
        ({"mixers": {"mamab": {}}}, "unknown mixer 'mamab'; did you mean 'mamba'"),
        ({"mlp": "swigluu"}, "unknown mlp 'swigluu'; did you mean 'swiglu'"),
        ({"mlp": {"mamba": "relu"}}, "mlp names 'mamba', which is none of the layers"),
        ({"mlp": {"attention": "rellu"}}, "unknown mlp 'rellu'; did you mean 'relu'"),
        ({"mlps": {"relu": {}}}, "mlps has options for 'relu', which no layer uses"),
        ({"mlps": {"swiglu": {"hiden": 3}}}, "unknown option of swiglu 'hiden'; did you mean 'hidden'"),
        ({"norm": "batchnorm"}, r"\[model\]: norm: .*got 'batchnorm'"),
        ({"norm_position": "sandwich"}, r"\[model\]: norm_position"),
        ({"position": "learned"}, "max_positions goes with position = 'learned'"),
        ({"max_positions": 8}, "max_positions goes with position = 'learned'"),
        ({"position": "learned", "max_positions": 0}, "max_positions: must be at least 1"),
    ],
)
def test_faults_name_what_was_expected_and_what_came(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        LanguageModelConfig.parse({**GOOD, **change})
    assert "\n" not in str(caught.value)


def test_mlp_by_mixer_or_as_published() -> None:
    published = LanguageModelConfig.parse({**GOOD, "layers": "mamba+attention"})
    assert (published.mlp_of("mamba"), published.mlp_of("attention")) == (None, "swiglu")
    table = LanguageModelConfig.parse({**GOOD, "layers": "mamba+attention", "mlp": {"mamba": "relu"}})
    assert (table.mlp_of("mamba"), table.mlp_of("attention")) == ("relu", "swiglu")
    none = LanguageModelConfig.parse({**GOOD, "mlp": "none"})
    assert none.mlp_of("attention") is None


def test_text_and_back() -> None:
    config = LanguageModelConfig.parse(
        {**GOOD, "mixers": {"attention": {"heads": 2}}, "mlps": {"swiglu": {"hidden": 8}}}
    )
    assert LanguageModelConfig.parse(json.loads(config.to_json())) == config


def test_fingerprints_differ_where_configurations_do() -> None:
    config, other = (LanguageModelConfig.parse({**GOOD, "width": width}) for width in (16, 32))
    assert config.fingerprint() == LanguageModelConfig.parse(GOOD).fingerprint() != other.fingerprint()
    assert config.differences(other.model_dump(mode="json")) == ["width 32 (here 16)"]
    assert config.differences(config.model_dump(mode="json")) == []


def test_a_classifier_has_classes_and_an_untied_head() -> None:
    config = ClassifierConfig.parse({**GOOD, "classes": 3})
    assert (config.classes, config.pooling, config.tied) == (3, "last", False)
    for change in ({}, {"classes": 0}, {"classes": 3, "pooling": "max"}, {"classes": 3, "tied": True}):
        with pytest.raises(ConfigError):
            ClassifierConfig.parse({**GOOD, **change})
