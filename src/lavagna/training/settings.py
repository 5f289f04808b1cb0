"""Everything that was asked of a run: the tables [model], [training] and [data], from a file and overrides."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..data import Tokenizer, load_tokenizer
from ..errors import ConfigError, unknown_name
from ..files import atomic_file
from ..models import LanguageModel, LanguageModelConfig
from ..models.presets import preset
from .config import TrainingConfig
from .data import DataConfig
from .run import find_model

__all__ = ["Settings", "merge", "read_tables", "set_value"]

SECTIONS = ("model", "training", "data")


class Settings(NamedTuple):
    """What was asked of a run.

    Fields:
        model: keys of LanguageModelConfig; and ``preset``, the name of one that the other keys change, or ``init``,
            a saved model to go on from, with which other keys must agree. ``vocab_size`` may be left out: it is the
            tokenizer's.
        training, data: the other tables.
    """

    model: dict[str, Any]
    training: TrainingConfig
    data: DataConfig

    @classmethod
    def parse(cls, tables: Mapping[str, Mapping[str, Any]]) -> Settings:
        """Check everything that can be checked before the data are read.

        Raises:
            ConfigError: an unknown table or key (naming the nearest known one), or a value that cannot be.
        """
        for name, table in tables.items():
            if name not in SECTIONS:
                raise ConfigError(unknown_name("table", name, SECTIONS))
            if not isinstance(table, Mapping):
                raise ConfigError(f"expected a table [{name}], got {table!r}")
        model = dict(tables.get("model", {}))
        if not {"preset", "init", "layers"} & model.keys():
            raise ConfigError("expected a model: --preset NAME, --init MODEL, or a [model] table with its layers")
        if {"preset", "init"} <= model.keys():
            raise ConfigError("[model]: expected preset or init, got both")
        data = DataConfig.parse(tables.get("data", {}))
        if "preset" in model:
            model = merge(preset(model.pop("preset")), model)
        if "init" not in model:
            LanguageModelConfig.parse({"vocab_size": 1, **model})
        elif "tokenizer" in tables.get("data", {}):
            raise ConfigError(
                f"[data]: tokenizer: expected none beside init, whose own is kept, got {data.tokenizer!r}"
            )
        return cls(model, TrainingConfig.parse(tables.get("training", {})), data)

    def build_model(self, tokenizer: Tokenizer) -> LanguageModel:
        """The model to be trained, new or from `init`.

        Raises:
            ConfigError: it has fewer tokens than the tokenizer, or `init` is no model or one of another shape.
        """
        if "init" in self.model:
            return self._saved_model()
        config = LanguageModelConfig.parse({"vocab_size": tokenizer.vocab_size, **self.model})
        if config.vocab_size < tokenizer.vocab_size:
            raise ConfigError(
                f"[model]: vocab_size: expected at least the tokenizer's {tokenizer.vocab_size}, "
                f"got {config.vocab_size}"
            )
        return LanguageModel(config, seed=self.training.seed)

    def init_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the saved model to go on from; None for a new model."""
        return load_tokenizer(find_model(self.model["init"])) if "init" in self.model else None

    def _saved_model(self) -> LanguageModel:
        asked = {key: value for key, value in self.model.items() if key != "init"}
        model = LanguageModel.load(find_model(self.model["init"]))
        has = model.config.model_dump(mode="json")
        wanted = LanguageModelConfig.parse({**has, **asked}).model_dump(mode="json")
        differing = [f"{key} {wanted[key]!r} (it has {has[key]!r})" for key in has if wanted[key] != has[key]]
        if differing:
            raise ConfigError(f"[model]: a saved model keeps its shape, but other values came: {'; '.join(differing)}")
        return model

    def refuse_other_data(self, path: Path) -> None:
        """Compare with what a run that is to be gone on with was asked for, which has its tokens already.

        Raises:
            ConfigError: [data] differs; the message names each key.
        """
        before, now = Settings.parse(read_tables(path)).data, self.data
        differing = [
            f"data.{key} was {getattr(before, key)!r} and is {getattr(now, key)!r}"
            for key in DataConfig.model_fields
            if getattr(before, key) != getattr(now, key)
        ]
        if differing:
            raise ConfigError(f"cannot resume {str(path.parent)!r} with other data: {'; '.join(differing)}")

    def save(self, path: Path) -> None:
        """Write a JSON file that :func:`read_tables` reads."""
        tables = {
            "model": self.model,
            "training": self.training.model_dump(mode="json"),
            "data": self.data.model_dump(mode="json", exclude={"tokenizer"} if "init" in self.model else None),
        }
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(tables, indent=2) + "\n")


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, or of a JSON file if its name ends in .json.

    Raises:
        ConfigError: the file is missing or malformed.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is malformed: {error}") from None
    if not isinstance(tables, dict):
        raise ConfigError(f"{str(path)!r}: expected the tables {', '.join(SECTIONS)}, got {type(tables).__name__}")
    return tables


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes`, table by table."""
    merged = dict(base)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def set_value(tables: Mapping[str, Any], assignment: str) -> dict[str, Any]:
    """`tables` with one value set, given as ``table.key=value`` (``model.mixers.attention.heads=8``).

    The value is read as TOML; what is no TOML is text, so that names need no quotes.

    Raises:
        ConfigError: no such assignment.
    """
    name, sign, text = assignment.partition("=")
    path = [part.strip() for part in name.split(".")]
    if not sign or len(path) < 2 or not all(path):
        raise ConfigError(f"expected table.key=value, such as training.steps=500, got {assignment!r}")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for key in reversed(path):
        value = {key: value}
    return merge(tables, value)
