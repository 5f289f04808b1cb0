"""The only list of mixers and of MLPs: name -> "module:Class". One line each."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ..errors import ConfigError, unknown_name
from .base import Mixer

__all__ = ["MIXERS", "MLPS", "build", "mixer_class", "option_types"]

MIXERS: dict[str, str] = {
    "attention": "lavagna.mixers.attention:Attention",
    "linear_attention": "lavagna.mixers.linear_attention:LinearAttention",
    "retnet": "lavagna.mixers.retnet:RetNet",
    "s4d": "lavagna.mixers.s4d:S4D",
    "mamba": "lavagna.mixers.mamba:Mamba",
    "mamba2": "lavagna.mixers.mamba2:Mamba2",
    "gla": "lavagna.mixers.gla:GLA",
    "rwkv6": "lavagna.mixers.rwkv6:RWKV6",
    "rwkv7": "lavagna.mixers.rwkv7:RWKV7",
    "deltanet": "lavagna.mixers.deltanet:DeltaNet",
    "gated_deltanet": "lavagna.mixers.gated_deltanet:GatedDeltaNet",
    "kda": "lavagna.mixers.kda:KDA",
}

#: What mixes channels after the mixer: the same interface, since an MLP may carry state too.
MLPS: dict[str, str] = {
    "relu": "lavagna.mixers.mlp:ReluMLP",
    "gelu": "lavagna.mixers.mlp:GeluMLP",
    "swiglu": "lavagna.mixers.mlp:SwiGLU",
    "channel_mix": "lavagna.mixers.channel_mix:ChannelMix",
}


def mixer_class(name: str, table: Mapping[str, str] = MIXERS, kind: str = "mixer") -> type[Mixer]:
    """The class of a registered mixer (or MLP, with ``table=MLPS``).

    Raises:
        ConfigError: no such name; the message names the nearest known one.
    """
    if name not in table:
        raise ConfigError(unknown_name(kind, name, table))
    module, attribute = table[name].split(":")
    return getattr(import_module(module), attribute)


def option_types(cls: type[Mixer]) -> type[BaseModel]:
    """A strict pydantic model of the options of a mixer: the keyword arguments of its constructor."""
    hints = get_type_hints(cls.__init__)
    fields: dict[str, Any] = {
        name: (hints[name], parameter.default)
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return create_model(f"{cls.__name__}Options", __config__=ConfigDict(extra="forbid", frozen=True), **fields)


def build(
    name: str,
    width: int,
    options: Mapping[str, Any] | None = None,
    *,
    table: Mapping[str, str] = MIXERS,
    kind: str = "mixer",
) -> Mixer:
    """Build a registered mixer of `width` channels.

    Args:
        name: a key of `table`.
        width: D.
        options: keyword arguments of the class, checked by name and type.
        table, kind: MIXERS and "mixer", or MLPS and "mlp".

    Raises:
        ConfigError: unknown name, unknown option (naming the nearest known one) or a value that cannot be.
    """
    cls = mixer_class(name, table, kind)
    return cls(width, **checked_options(name, cls, options or {}))


def checked_options(name: str, cls: type[Mixer], options: Mapping[str, Any]) -> dict[str, Any]:
    """The given options, validated; those that were not given are left to the class."""
    types = option_types(cls)
    for key in options:
        if key not in types.model_fields:
            raise ConfigError(unknown_name(f"option of {name}", key, types.model_fields))
    try:
        validated = types(**options)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{name}: option {where}: {first['msg']}, got {first['input']!r}") from None
    return {key: getattr(validated, key) for key in options}
