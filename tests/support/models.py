"""Small models of every kind that a test of whole models should see."""

from __future__ import annotations

from typing import Any

import torch

from lavagna.models import LanguageModel, LanguageModelConfig, expand_layers

__all__ = ["LAYERS", "float64_twin", "make_config", "make_model"]

#: a cache that grows, a state that fades, a state that is corrected, and both kinds in one model
LAYERS = ("2*attention", "2*mamba", "2*gated_deltanet", "gated_deltanet+attention")

OPTIONS = {"attention": {"heads": 2}, "gated_deltanet": {"heads": 2}, "mamba": {"state_size": 4}}


def make_config(
    layers: str = LAYERS[-1], *, vocab_size: int = 257, width: int = 16, **keys: Any
) -> LanguageModelConfig:
    """A configuration of so many layers, small heads, and any other keys."""
    mixers = {name: options for name, options in OPTIONS.items() if name in expand_layers(layers)}
    return LanguageModelConfig.parse(
        {"vocab_size": vocab_size, "width": width, "layers": layers, "mixers": mixers, **keys}
    )


def make_model(
    layers: str = LAYERS[-1], *, dtype: torch.dtype = torch.float32, seed: int = 0, **keys: Any
) -> LanguageModel:
    """A language model whose weights are larger than at the start of training, so that its choices are distinct."""
    model = LanguageModel(make_config(layers, **keys), seed=seed)
    with torch.no_grad():
        model.embedding.weight.mul_(20)
    return model.to(dtype)


def float64_twin(model: LanguageModel) -> LanguageModel:
    """The same parameters in float64."""
    twin = LanguageModel(model.config, seed=0).double()
    twin.load_state_dict(model.state_dict())
    return twin
