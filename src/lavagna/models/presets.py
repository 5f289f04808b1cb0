"""Shapes with names: sizes that any layers can have, and a few published models. Data, and one function."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, NamedTuple

from ..errors import ConfigError, unknown_name
from ..mixers.registry import mixer_class, option_types
from .layers import expand_layers

__all__ = ["PUBLISHED", "SIZES", "Size", "preset"]


class Size(NamedTuple):
    """A size, and about how many parameters it gives with a vocabulary of bytes.

    Fields:
        width: D.
        depth: blocks of a mixer and an MLP; a block without MLP counts as half of one.
        heads: of those mixers that are told how many they have.
    """

    width: int
    depth: int
    heads: int


SIZES: dict[str, Size] = {
    "nano": Size(width=64, depth=2, heads=2),  # .15 M
    "tiny": Size(width=128, depth=4, heads=4),  # 1 M
    "small": Size(width=320, depth=8, heads=5),  # 10 M
    "base": Size(width=768, depth=12, heads=12),  # 100 M
}

#: name -> keys of LanguageModelConfig
PUBLISHED: dict[str, dict[str, Any]] = {
    # Gu & Dao 2023, appendix E; state-spaces/mamba-130m pads its vocabulary to 50280.
    "mamba-130m": {"vocab_size": 50280, "width": 768, "layers": "24*mamba"},
    # Dao & Gu 2024; state-spaces/mamba2-130m pads to 50288.
    "mamba2-130m": {"vocab_size": 50288, "width": 768, "layers": "24*mamba2"},
    # Radford et al. 2019, the smallest.
    "gpt2": {
        "vocab_size": 50257,
        "width": 768,
        "layers": "12*attention",
        "mixers": {"attention": {"heads": 12, "position": "none", "qkv_bias": True, "out_bias": True}},
        "mlp": "gelu",
        "norm": "layernorm",
        "position": "learned",
        "max_positions": 1024,
    },
}


def preset(name: str) -> dict[str, Any]:
    """Keys of LanguageModelConfig for a name; ``vocab_size`` is among them for published models alone.

    Args:
        name: a key of PUBLISHED; or LAYERS-SIZE or LAYERS@SIZE, the layers repeated until the size's depth is reached
            ("gated_deltanet-tiny", "3*gated_deltanet+attention@small").

    Raises:
        ConfigError: no such published model, size or mixer.
    """
    if name in PUBLISHED:
        return deepcopy(PUBLISHED[name])
    match = re.fullmatch(r"(.+)[-@](\w+)", name)
    if match is None:
        raise ConfigError(
            f"expected a preset {', '.join(PUBLISHED)}, or LAYERS-SIZE such as gated_deltanet-tiny, got {name!r}"
        )
    layers, size_name = match.groups()
    if size_name not in SIZES:
        raise ConfigError(unknown_name("size of a preset", size_name, (*SIZES, *PUBLISHED)))
    size, pattern = SIZES[size_name], expand_layers(layers)
    classes = {mixer: mixer_class(mixer) for mixer in pattern}
    blocks = sum(0.5 if classes[mixer].published_mlp is None else 1.0 for mixer in pattern)
    return {
        "width": size.width,
        "layers": max(round(size.depth / blocks), 1) * pattern,
        "mixers": {
            mixer: {"heads": size.heads} for mixer, cls in classes.items() if "heads" in option_types(cls).model_fields
        },
    }
