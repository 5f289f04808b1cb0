"""The strict configuration of a model: every key is known, every value is checked, depth is data."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator, model_validator

from ..errors import ConfigError, unknown_name
from ..mixers.registry import MLPS, checked_options, mixer_class
from .layers import expand_layers

__all__ = ["ClassifierConfig", "LanguageModelConfig", "StrictModel"]


class StrictModel(BaseModel):
    """A frozen pydantic model whose errors are ConfigErrors of one sentence.

    ``section`` names the table of a TOML file in messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def section(cls) -> str:
        return cls.__name__

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Validate a mapping.

        Raises:
            ConfigError: an unknown key (naming the nearest known one), a missing one, or a value that cannot be.
        """
        for key in values:
            if key not in cls.model_fields:
                raise ConfigError(unknown_name(f"key of {cls.section()}", str(key), cls.model_fields))
        try:
            return cls(**values)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or cls.section()
            message = first["msg"].removeprefix("Value error, ")
            got = "" if first["type"] == "missing" else f", got {first['input']!r}"
            if isinstance(cause := first.get("ctx", {}).get("error"), ConfigError):
                raise cause from None
            raise ConfigError(f"{cls.section()}: {where}: {message}{got}") from None


class LanguageModelConfig(StrictModel):
    """All that decides a language model's shape.

    Fields:
        vocab_size: number of tokens.
        width: D.
        layers: names of mixers, one per block; a string is expanded ("2*(3*gated_deltanet+attention)").
        mixers: options by mixer's name, e.g. {"attention": {"heads": 8}}.
        mlp: what follows the mixer in a block: "swiglu", "gelu", "relu", "channel_mix" or "none"; or a table by
            mixer's name; or "published" for what each mixer's paper has.
        mlps: options by MLP's name, e.g. {"swiglu": {"hidden": 512}}.
        norm: "rmsnorm" or "layernorm".
        norm_eps: added to the variance.
        norm_position: "pre": x + f(norm x); "post": norm(x + f(x)).
        final_norm: a norm before the head.
        position: what is added to the embeddings: "none", "learned" (ends at max_positions) or "sinusoidal".
            Rotary positions are an option of the attention mixer.
        max_positions: length of the learned table.
        tied: the head is the transposed embedding.
    """

    vocab_size: int
    width: int
    layers: tuple[str, ...]
    mixers: dict[str, dict[str, Any]] = {}
    mlp: str | dict[str, str] = "published"
    mlps: dict[str, dict[str, Any]] = {}
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norm_eps: float = 1e-5
    norm_position: Literal["pre", "post"] = "pre"
    final_norm: bool = True
    position: Literal["none", "learned", "sinusoidal"] = "none"
    max_positions: int | None = None
    tied: bool = True

    @classmethod
    def section(cls) -> str:
        return "[model]"

    @field_validator("layers", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand_layers(value) if isinstance(value, str) else value

    @field_validator("vocab_size", "width", "max_positions")
    @classmethod
    def _positive(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError("must be at least 1")
        return value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.layers:
            raise ConfigError("[model]: layers: expected at least one layer, got none")
        for name in self.layers:
            mixer_class(name)
        for name, options in self.mixers.items():
            checked_options(name, mixer_class(name), options)
            if name not in self.layers:
                raise ConfigError(f"[model]: mixers has options for {name!r}, which is none of the layers")
        if isinstance(self.mlp, dict):
            for name in self.mlp:
                if name not in self.layers:
                    raise ConfigError(f"[model]: mlp names {name!r}, which is none of the layers")
        used = {self.mlp_of(name) for name in self.layers} - {None}
        for name, options in self.mlps.items():
            checked_options(name, mixer_class(name, MLPS, "mlp"), options)
            if name not in used:
                raise ConfigError(f"[model]: mlps has options for {name!r}, which no layer uses")
        if (self.position == "learned") != (self.max_positions is not None):
            raise ConfigError(
                "[model]: max_positions goes with position = 'learned', "
                f"got position {self.position!r} and max_positions {self.max_positions}"
            )
        return self

    def mlp_of(self, mixer: str) -> str | None:
        """The MLP's name behind a mixer, or None."""
        name: str | None = self.mlp if isinstance(self.mlp, str) else self.mlp.get(mixer, "published")
        if name == "published":
            name = mixer_class(mixer).published_mlp
        if name is None or name == "none":
            return None
        mixer_class(name, MLPS, "mlp")
        return name

    def to_json(self) -> str:
        """The canonical text of this configuration."""
        return json.dumps(self.model_dump(mode="json"), sort_keys=True, indent=2)

    def fingerprint(self) -> str:
        """Twelve hex digits that differ between configurations."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Each key whose value in `other` differs, as "key: theirs, here ours"."""
        mine = self.model_dump(mode="json")
        return [
            f"{key} {other.get(key)!r} (here {mine.get(key)!r})"
            for key in sorted({*mine, *other})
            if mine.get(key) != other.get(key)
        ]


class ClassifierConfig(LanguageModelConfig):
    """A model that names the class of a whole sequence.

    Fields, beside those of LanguageModelConfig (``tied`` has no meaning here):
        classes: number of classes.
        pooling: "last": the hidden state at the last real token; "mean": the mean over real tokens.
    """

    classes: int
    pooling: Literal["last", "mean"] = "last"
    tied: Literal[False] = False

    @field_validator("classes")
    @classmethod
    def _some(cls, value: int) -> int:
        if value < 1:
            raise ValueError("must be at least 1")
        return value
