"""The data of a run: where it comes from, which tokenizer makes its ids, where the ids are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from pydantic import field_validator, model_validator

from ..data import BPETokenizer, ByteTokenizer, Corpus, Source, Tokenizer, documents, load_tokenizer, prepare
from ..errors import ConfigError
from ..models.config import StrictModel

__all__ = ["DataConfig", "make_tokenizer", "open_corpus"]

BPE = "bpe:"


class DataConfig(StrictModel):
    """Where a run's text comes from.

    Fields:
        source: files, folders, glob patterns; none of them: the sources of the standard library.
        column: key of JSON lines, or column of Parquet, that holds the text.
        pattern: keeps the files whose path ends in a match, such as "*.md".
        tokenizer: "bytes"; "bpe:SIZE", a byte-pair encoding of SIZE tokens trained on this text; or the path of
            a tokenizer.json or of a folder with one.
    """

    source: tuple[str, ...] = ()
    column: str = "text"
    pattern: str | None = None
    tokenizer: str = "bytes"

    @classmethod
    def section(cls) -> str:
        return "[data]"

    @field_validator("source", mode="before")
    @classmethod
    def _one_source(cls, value: object) -> object:
        """A single name, as one writes it in a file, is a list of one."""
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokenizer.startswith(BPE) and not self.tokenizer.removeprefix(BPE).isdecimal():
            raise ConfigError(f"[data]: tokenizer: expected bpe:SIZE with a number of tokens, got {self.tokenizer!r}")
        return self

    @property
    def trains_tokenizer(self) -> bool:
        """Whether the tokenizer is made from the text."""
        return self.tokenizer.startswith(BPE)

    @property
    def sources(self) -> Source:
        """As the functions of lavagna.data take them."""
        return self.source or None


def make_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer that a configuration names, trained if it says so.

    Raises:
        InputError: a trained one of fewer tokens than there are bytes.
        DataError: no such tokenizer, or the source's faults.
    """
    if config.tokenizer == "bytes":
        return ByteTokenizer()
    if not config.trains_tokenizer:
        return load_tokenizer(config.tokenizer)
    size = int(config.tokenizer.removeprefix(BPE))
    return BPETokenizer.train(documents(config.sources, column=config.column, pattern=config.pattern), size)


def open_corpus(
    config: DataConfig,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """The corpus of a configuration, built in `folder` unless it is there already (see lavagna.data.prepare)."""
    return prepare(config.sources, tokenizer, folder, column=config.column, pattern=config.pattern, progress=progress)
