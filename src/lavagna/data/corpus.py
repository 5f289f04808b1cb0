"""Memory-mapped token files: documents back to back, an index of where each begins, and the tokenizer.

A corpus is a folder::

    tokens.bin                 ids of all documents, one after another, uint16 or uint32
    offsets.npy                int64 [documents + 1], where each document begins in tokens.bin
    byte_lengths.npy           int64 [documents], bytes of each document's text
    names.jsonl                a JSON string a line, the documents' names
    tokenizer_config.json      (and tokenizer.json) the tokenizer
    meta.json                  format, fingerprint, dtype, counts; written last

Opening one maps the files: memory does not grow with the data.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, InputError
from .sources import CACHE_TAG, Pieces, Source, files_fingerprint, find_files, read_files
from .tokenizer import Tokenizer, load_tokenizer

__all__ = ["Corpus", "prepare"]

FORMAT = 1
META = "meta.json"
CACHE_SIGNATURE = "Signature: 8a477f597d28d172789f06886806bc55\n# Made by lavagna from other files.\n"
ABANDONED = 86400.0  # seconds after which what a killed build left is swept away


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Tokens of documents, mapped from a folder; a part of a split is a corpus on the same files.

    Attributes:
        folder: where the files are.
        tokenizer: what made the ids.
        fingerprint: digest of the sources and the tokenizer that it was built from.
        tokens: the mapped file of all ids, read-only; see :meth:`document` for one document's.
        starts, stops: int64 [documents], each document's place in `tokens`.
        byte_lengths: int64 [documents], bytes of each document's text.
    """

    folder: Path
    tokenizer: Tokenizer
    fingerprint: str
    tokens: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    byte_lengths: np.ndarray
    _numbers: np.ndarray | None = None  # of the documents in the folder's names; None: all in order

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Corpus:
        """Map the corpus of a folder.

        Raises:
            DataError: no corpus there, one of another format, or one whose files don't fit together.
        """
        path = Path(folder)
        meta = _read_meta(path)
        if meta is None:
            raise DataError(f"expected a corpus in {path}, but it has no readable {META}")
        if meta["format"] != FORMAT:
            raise DataError(f"expected format {FORMAT} of the corpus in {path}, got {meta['format']}")
        try:
            tokens = np.memmap(path / "tokens.bin", dtype=np.dtype(meta["dtype"]), mode="r")
            offsets = np.load(path / "offsets.npy", mmap_mode="r")
            byte_lengths = np.load(path / "byte_lengths.npy", mmap_mode="r")
        except (OSError, ValueError) as error:
            raise DataError(f"cannot read the corpus in {path}: {error}") from error
        counts = [len(tokens), len(byte_lengths), int(offsets[-1]), len(offsets) - 1]
        if counts != [meta["tokens"], meta["documents"]] * 2:
            raise DataError(
                f"expected {meta['tokens']} tokens in {meta['documents']} documents in {path}, "
                f"got {counts[0]} in {counts[1]}: remove the folder to build it anew"
            )
        return cls(path, load_tokenizer(path), meta["fingerprint"], tokens, offsets[:-1], offsets[1:], byte_lengths)

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.starts)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each document, int64 [documents]."""
        return np.asarray(self.stops - self.starts)

    @cached_property
    def n_tokens(self) -> int:
        """Number of tokens, the ends of documents not counted."""
        return int(self.lengths.sum())

    @cached_property
    def n_bytes(self) -> int:
        """Number of bytes of the text."""
        return int(self.byte_lengths.sum())

    @cached_property
    def names(self) -> list[str]:
        """Name of each document; read from disk when first asked for."""
        with open(self.folder / "names.jsonl", encoding="utf-8") as stream:
            names = [json.loads(line) for line in stream]
        return names if self._numbers is None else [names[number] for number in self._numbers]

    def document(self, index: int) -> np.ndarray:
        """Return the ids of one document, [T], a read-only view of the mapped file."""
        return self.tokens[self.starts[index] : self.stops[index]]

    def documents(self) -> Iterator[np.ndarray]:
        """Yield the ids of each document in the order of the files, as read-only views."""
        return map(self.document, range(len(self)))

    def split(self, validation_fraction: float = 0.05, seed: int = 0) -> tuple[Corpus, Corpus]:
        """Divide into training and validation, by document.

        In an order shuffled by `seed`, each document that still fits under `validation_fraction` of the
        tokens goes to validation; if none fits, the smallest does. A single document is cut once: its
        beginning is for training, its last tokens are for validation, and each part counts as a document.

        Args:
            validation_fraction: share of the tokens for validation, 0 < f < 1.
            seed: of the order in which documents are considered.

        Returns:
            ``(train, validation)``, neither empty, no token in both; the order of documents is kept.

        Raises:
            DataError: a single document of one token cannot be divided.
        """
        if not 0 < validation_fraction < 1:
            raise InputError(f"expected 0 < validation_fraction < 1, got {validation_fraction}")
        if len(self) == 1:
            return self._cut(validation_fraction)
        room = validation_fraction * self.n_tokens
        least = int(self.lengths.min())
        chosen = np.zeros(len(self), dtype=bool)
        for index in np.random.default_rng(seed).permutation(len(self)):
            if self.lengths[index] <= room:
                chosen[index] = True
                room -= self.lengths[index]
            if room < least:
                break
        if not chosen.any():
            chosen[self.lengths.argmin()] = True
        return self._select(np.flatnonzero(~chosen)), self._select(np.flatnonzero(chosen))

    def _cut(self, fraction: float) -> tuple[Corpus, Corpus]:
        if self.n_tokens < 2:
            raise DataError(f"expected at least 2 tokens to split a single document, got {self.n_tokens}")
        kept = min(max(round(self.n_tokens * (1 - fraction)), 1), self.n_tokens - 1)
        middle = self.starts + kept
        # Lossy vocabularies may miss some bytes: then training, the longer part, takes the difference.
        sizes = self.tokenizer.token_bytes()
        view, piece = self.document(0), 1 << 20
        tail = sum(int(sizes[view[i : i + piece]].sum()) for i in range(kept, len(view), piece))
        tail_bytes = np.array([tail], dtype=np.int64)
        return (
            dataclasses.replace(self, stops=middle, byte_lengths=self.byte_lengths - tail_bytes),
            dataclasses.replace(self, starts=middle, byte_lengths=tail_bytes),
        )

    def _select(self, indices: np.ndarray) -> Corpus:
        return dataclasses.replace(
            self,
            starts=self.starts[indices],
            stops=self.stops[indices],
            byte_lengths=self.byte_lengths[indices],
            _numbers=indices if self._numbers is None else self._numbers[indices],
        )


def prepare(
    source: Source,
    tokenizer: Tokenizer,
    folder: str | os.PathLike[str],
    *,
    column: str = "text",
    pattern: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Corpus:
    """Build the corpus of a source in a folder, or open the one there if nothing has changed.

    It is built beside the folder and renamed into place when complete, so an interrupted build leaves
    nothing that opens. Rebuilt when a file's path, size or time of change, the column or the tokenizer
    differs from the one it was built from.

    Args:
        source, column, pattern: as for :func:`lavagna.data.documents`.
        tokenizer: makes the ids.
        folder: the corpus to be; its parents are made.
        progress: called with (bytes read, bytes of all files) while it is built.

    Raises:
        DataError: the source's faults, or a folder that holds something else than a corpus.
    """
    path = Path(folder)
    files = find_files(source, pattern=pattern)
    digest = f"{FORMAT}\n{tokenizer.fingerprint}\n{files_fingerprint(files, column)}"
    fingerprint = hashlib.sha256(digest.encode()).hexdigest()
    if _is_current(path, fingerprint):
        return Corpus.open(path)
    taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if taken and _read_meta(path) is None:
        raise DataError(f"expected a corpus, an empty folder or nothing at {path}, got something else there")
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name}.partial-"
    _sweep(path.parent, prefix)
    partial = Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))
    try:
        _build(partial / "new", read_files(files, column, progress), tokenizer, fingerprint)
        _install(partial, path, fingerprint)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Corpus.open(path)


def _build(folder: Path, documents: Iterator[Pieces], tokenizer: Tokenizer, fingerprint: str) -> None:
    folder.mkdir()
    offsets, byte_lengths = array("q", [0]), array("q")
    with (
        open(folder / "tokens.bin", "wb") as tokens,
        open(folder / "names.jsonl", "w", encoding="utf-8") as names,
    ):
        for name, pieces in documents:
            n_bytes = n_tokens = 0

            def measured(pieces: Iterator[bytes] = pieces) -> Iterator[bytes]:
                nonlocal n_bytes
                for piece in pieces:
                    n_bytes += len(piece)
                    yield piece

            for ids in tokenizer.encode_pieces(measured()):
                n_tokens += len(ids)
                tokens.write(ids.astype(tokenizer.dtype, copy=False).tobytes())
            if n_tokens == 0:  # a vocabulary may have no token for what the text consists of
                continue
            offsets.append(offsets[-1] + n_tokens)
            byte_lengths.append(n_bytes)
            names.write(json.dumps(name) + "\n")
    if not byte_lengths:
        raise DataError("expected at least one token, but the tokenizer makes none of this text")
    np.save(folder / "offsets.npy", np.array(offsets, dtype=np.int64))
    np.save(folder / "byte_lengths.npy", np.array(byte_lengths, dtype=np.int64))
    tokenizer.save(folder)
    (folder / CACHE_TAG).write_text(CACHE_SIGNATURE, encoding="ascii")
    meta = {
        "format": FORMAT,
        "fingerprint": fingerprint,
        "dtype": tokenizer.dtype.name,
        "documents": len(byte_lengths),
        "tokens": offsets[-1],
        "bytes": sum(byte_lengths),
    }
    (folder / META).write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def _install(partial: Path, path: Path, fingerprint: str) -> None:
    """Put the new corpus in place, unless another process has just put the same one there."""
    if _is_current(path, fingerprint):
        return
    if path.exists():
        os.rename(path, partial / "old")
    try:
        os.rename(partial / "new", path)
    except OSError:
        if _is_current(path, fingerprint):
            return
        if (partial / "old").exists() and not path.exists():
            os.rename(partial / "old", path)
        raise


def _is_current(path: Path, fingerprint: str) -> bool:
    meta = _read_meta(path)
    return meta is not None and (meta["format"], meta["fingerprint"]) == (FORMAT, fingerprint)


def _read_meta(path: Path) -> dict[str, Any] | None:
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(meta, dict) and {"format", "fingerprint", "dtype", "documents", "tokens"} <= meta.keys()
    return meta if known else None


def _sweep(parent: Path, prefix: str) -> None:
    """Remove what builds left that were killed long ago."""
    for folder in parent.iterdir():
        with contextlib.suppress(OSError):  # another process may be faster
            if folder.name.startswith(prefix) and time.time() - folder.stat().st_mtime > ABANDONED:
                shutil.rmtree(folder)
