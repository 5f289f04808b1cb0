"""Every mixer and MLP of the registry with every set of its options, and models of every kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from lavagna.mixers.registry import MIXERS, MLPS, build, mixer_class, option_types
from lavagna.models import LanguageModel, LanguageModelConfig

from ..exceptions import CONTRACTS, exempt
from .contracts import Subject
from .mixers import randomised
from .variants import VARIANTS, WIDTH

__all__ = ["ALL", "DEFAULTS", "MIXER_SUBJECTS", "MODEL_SUBJECTS", "VOCAB", "model"]

ALL = {**MIXERS, **MLPS}

#: tokens that the models know
VOCAB = 11


def excepted(name: str, options: Mapping[str, Any]) -> frozenset[str]:
    """The contracts that do not bind a mixer with these options."""
    defaults = {key: field.default for key, field in option_types(mixer_class(name, ALL)).model_fields.items()}
    return frozenset(contract for contract in CONTRACTS if exempt(name, contract, **{**defaults, **options}))


def seeded(module: nn.Module) -> nn.Module:
    """The module in float64, every parameter drawn anew, the same ones each time."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return randomised(module.double())


def described(options: Mapping[str, Any]) -> str:
    return ",".join(f"{key}={value}" for key, value in options.items()) or "default"


def mixer_subjects() -> Iterator[Subject]:
    for name in ALL:
        # A mixer without variants fails in test_variants.py; here it is tested with its defaults.
        for options in VARIANTS.get(name, [{}]):
            module = seeded(build(name, WIDTH, options, table=ALL))
            yield Subject(f"{name}-{described(options)}", module, WIDTH, excepted(name, options))


MIXER_SUBJECTS = list(mixer_subjects())

#: of each name the first set of options
DEFAULTS = [next(s for s in MIXER_SUBJECTS if s.name.split("-")[0] == name) for name in ALL]

#: what models are made of beside a pair of layers of each mixer: keys of the configuration
MODELS: dict[str, dict[str, Any]] = {
    "hybrid": {"layers": "gated_deltanet+attention"},
    "hybrid of three": {"layers": "mamba2+retnet+attention", "mixers": {"attention": {"window": 5}}},
    "learned positions": {
        "layers": "2*attention",
        "mixers": {"attention": {"position": "none"}},
        "position": "learned",
        "max_positions": 500,
    },
    "sinusoidal positions": {"layers": "2*linear_attention", "position": "sinusoidal", "tied": False},
    "post-norm": {"layers": "2*deltanet", "norm_position": "post", "final_norm": False, "mlp": "gelu"},
    "layernorm": {"layers": "attention+mamba", "norm": "layernorm", "mlp": "relu", "norm_eps": 1e-3},
    "channel mix": {"layers": "gla+s4d", "mlp": "channel_mix"},
    "no MLP": {"layers": "2*gated_deltanet", "mlp": "none"},
}


def model(**keys: Any) -> LanguageModel:
    """A model in float64 with every parameter drawn anew; the first variant's options where none are given."""
    layers = LanguageModelConfig.parse({"vocab_size": VOCAB, "width": WIDTH, "layers": keys["layers"]}).layers
    options = {name: VARIANTS.get(name, [{}])[0] for name in layers} | keys.pop("mixers", {})
    config = LanguageModelConfig.parse({"vocab_size": VOCAB, "width": WIDTH, "mixers": options, **keys})
    module = seeded(LanguageModel(config, seed=0))
    assert isinstance(module, LanguageModel)
    return module


def model_subjects() -> Iterator[Subject]:
    for name, keys in {**{name: {"layers": f"2*{name}"} for name in MIXERS}, **MODELS}.items():
        module = model(**keys)
        config = module.config
        exceptions = frozenset().union(*(excepted(layer, config.mixers.get(layer, {})) for layer in config.layers))
        yield Subject(name, module, WIDTH, exceptions)
        if name == "hybrid":
            again = model(**keys)
            again.checkpointing = True
            yield Subject("hybrid, checkpointing", again, WIDTH, exceptions)


MODEL_SUBJECTS = list(model_subjects())
