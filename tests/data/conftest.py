"""Small corpora of known documents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lavagna.data import ByteTokenizer, Corpus, prepare


@pytest.fixture
def corpus_of(tmp_path: Path) -> Callable[[Sequence[bytes]], Corpus]:
    """A function from documents to their byte corpus."""

    def build(texts: Sequence[bytes]) -> Corpus:
        return write_corpus(tmp_path, texts)

    return build


def write_corpus(folder: Path, texts: Sequence[bytes]) -> Corpus:
    source = folder / "source"
    source.mkdir()
    for number, text in enumerate(texts):
        (source / f"{number:04}.txt").write_bytes(text)
    return prepare(source, ByteTokenizer(), folder / "corpus")
