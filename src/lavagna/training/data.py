"""The data of a run: where it comes from, which tokenizer makes its ids, where the ids are kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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

    @property
    def sources(self) -> Source:
        """As the functions of lavagna.data take them."""
        return self.source or None


def make_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer that a configuration names, trained if it says so.

    Raises:
        ConfigError: "bpe:" without a number.
        DataError: no such tokenizer, or the source's faults.
    """
    if config.tokenizer == "bytes":
        return ByteTokenizer()
    if not config.tokenizer.startswith(BPE):
        return load_tokenizer(config.tokenizer)
    size = config.tokenizer.removeprefix(BPE)
    if not size.isdecimal():
        raise ConfigError(f"[data]: tokenizer: expected bpe:SIZE with a number of tokens, got {config.tokenizer!r}")
    return BPETokenizer.train(documents(config.sources, column=config.column, pattern=config.pattern), int(size))


def open_corpus(
    config: DataConfig,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """The corpus of a configuration, built in `folder` unless it is there already (see lavagna.data.prepare)."""
    return prepare(config.sources, tokenizer, folder, column=config.column, pattern=config.pattern, progress=progress)
