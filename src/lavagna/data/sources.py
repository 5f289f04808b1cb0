"""Where documents come from: files, folders, patterns, JSON lines, Parquet, the standard library.

A *document* is a run of bytes with a name. Nothing here knows tokens: see ``tokenizer.py`` and ``corpus.py``.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from ..errors import DataError

__all__ = ["Document", "Source", "SourceFile", "documents", "find_files", "stdlib_folder"]

# What a user may give as data: None or "stdlib" is the embedded default.
Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None

PIECE = 1 << 20  # bytes read at once: no file is held whole on its way to a corpus
SNIFFED = 1 << 13  # a zero byte this early in a file that was found, not named, marks it as binary
CACHE_TAG = "CACHEDIR.TAG"  # in a folder of things that programs made (bford.info/cachedir); corpora have one
STDLIB_LEFT_OUT = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


class Document(NamedTuple):
    """One text: the name says where it was found, the data are its bytes as they stood there."""

    name: str
    data: bytes


class SourceFile(NamedTuple):
    """A file to read; `named` if the user named this very file, which is then read whatever it holds."""

    path: Path
    named: bool


Pieces = tuple[str, Iterator[bytes]]  # a document read piece by piece: its name, then its bytes in order


def documents(source: Source = None, *, column: str = "text", pattern: str | None = None) -> Iterator[Document]:
    """Read the documents of a source one after another, never all at once.

    A text file is one document; a line of JSON (``.jsonl``, ``.ndjson``) or a row of Parquet (``.parquet``)
    is one too. A folder is read recursively and in sorted order, without hidden entries, binary files
    (a zero byte within the first 8 KiB) and folders marked by a ``CACHEDIR.TAG``. Documents without a byte
    are left out.

    Args:
        source: a file, a folder, a glob pattern, or a sequence of these; None or ``"stdlib"`` is the
            embedded default, the sources of the running interpreter's standard library without its tests.
        column: key of JSON lines, or column of Parquet, that holds the text; a null there is an empty text.
        pattern: keeps the files whose path ends in a match (``Path.match``): ``"*.md"``, ``"src/*.py"``.

    Returns:
        An iterator over ``Document(name, data)``. Files are found at once and read as it advances.

    Raises:
        DataError: a path that does not exist, a pattern without a match, a missing column, a malformed
            line, or a source without a single byte of text.
    """
    files = find_files(source, pattern=pattern)
    return (Document(name, b"".join(pieces)) for name, pieces in read_files(files, column))


def stdlib_folder() -> Path:
    """Return the folder of the running interpreter's standard library.

    Raises:
        DataError: this Python keeps no sources on disk.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    if not (folder / "os.py").is_file():
        raise DataError(f"expected the standard library's sources in {folder}, but this Python has none there")
    return folder


def find_files(source: Source = None, *, pattern: str | None = None) -> list[SourceFile]:
    """List the files of a source, each once, in the order in which they are read.

    Args:
        source, pattern: as in :func:`documents`.

    Raises:
        DataError: a path that does not exist or a pattern without a match.
    """
    parts: Iterable[str | os.PathLike[str] | None]
    parts = [source] if source is None or isinstance(source, str | os.PathLike) else source
    found: dict[Path, bool] = {}
    for part in parts:
        for file in _expand(part, pattern):
            found[file.path] = found.get(file.path, False) or file.named
    if not found:
        raise DataError("expected at least one file, folder or pattern as data, got an empty list")
    return [SourceFile(path, named) for path, named in found.items()]


def files_fingerprint(files: Sequence[SourceFile], column: str) -> str:
    """Return a digest that changes when a file's path, size or time of change does, or the column."""
    digest = hashlib.sha256(column.encode())
    for file in files:
        status = _stat(file.path)
        line = [str(file.path.absolute()), file.named, status.st_size, status.st_mtime_ns]
        digest.update(json.dumps(line).encode())
    return digest.hexdigest()


def read_files(
    files: Sequence[SourceFile], column: str, progress: Callable[[int, int], None] | None = None
) -> Iterator[Pieces]:
    """Yield each document that is not empty as ``(name, pieces)``; read the pieces before advancing.

    Args:
        files: from :func:`find_files`.
        column: where JSON lines and Parquet keep the text.
        progress: called with (bytes of the files read, bytes of all files), the first never falling.
    """
    sizes = [_stat(file.path).st_size for file in files]
    # The end of the file being read bounds its progress: text may be longer than a compressed file.
    done, end, total = 0, 0, sum(sizes)

    def counted(pieces: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for piece in pieces:
            yield piece
            done = min(done + len(piece), end)
            report(done, total)

    report = progress or (lambda done, total: None)
    empty = True
    for file, size in zip(files, sizes, strict=True):
        end += size
        try:
            for name, pieces in READERS.get(file.path.suffix.lower(), _read_text)(file, column):
                empty = False
                yield name, counted(pieces)
        except OSError as error:
            raise DataError(f"cannot read {file.path}: {error.strerror or error}") from error
        done = end
        report(done, total)
    if empty:
        names = ", ".join(str(file.path) for file in files[:3]) + (", ..." if len(files) > 3 else "")
        raise DataError(f"expected text, but there is none in {names} (only empty or binary files)")


def _stat(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _expand(part: str | os.PathLike[str] | None, pattern: str | None) -> list[SourceFile]:
    if part is None or part == "stdlib":
        part, files = (
            stdlib_folder(),
            [f for f in _walk(stdlib_folder(), STDLIB_LEFT_OUT) if f.path.suffix == ".py"],
        )
    elif Path(part).is_dir():
        files = _walk(Path(part))
    elif Path(part).exists():
        files = [SourceFile(Path(part), named=True)]
    elif glob.has_magic(os.fspath(part)):
        hits = map(Path, sorted(glob.glob(os.fspath(part), recursive=True)))
        files = [file for hit in hits for file in (_walk(hit) if hit.is_dir() else [SourceFile(hit, named=False)])]
    else:
        raise DataError(f"expected a file, a folder or a glob pattern, but {os.fspath(part)!r} does not exist")
    if not files:
        raise DataError(f"expected files, but {os.fspath(part)!r} has or matches none")
    kept = files if pattern is None else [file for file in files if file.path.match(pattern)]
    if not kept:
        raise DataError(
            f"expected files that match {pattern!r}, but none of the {len(files)} of {os.fspath(part)!r} does"
        )
    return kept


def _walk(folder: Path, left_out: Iterable[str] = ()) -> list[SourceFile]:
    paths: list[Path] = []
    for root, folders, names in os.walk(folder):
        if CACHE_TAG in names and Path(root) != folder:
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".") and name not in left_out]
        paths += [Path(root, name) for name in names if not name.startswith(".")]
    # Neither dangling links nor pipes, which would wait for ever.
    return [SourceFile(path, named=False) for path in sorted(paths) if path.is_file()]


def _read_text(file: SourceFile, column: str) -> Iterator[Pieces]:
    with open(file.path, "rb") as stream:
        first = stream.read(PIECE)
        if first and (file.named or b"\0" not in first[:SNIFFED]):
            yield str(file.path), _pieces(first, stream)


def _pieces(first: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    piece = first
    while piece:
        yield piece
        piece = stream.read(PIECE)


def _read_json_lines(file: SourceFile, column: str) -> Iterator[Pieces]:
    with open(file.path, "rb") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            where = f"{file.path}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:  # malformed JSON, or bytes that are no UTF-8
                raise DataError(f"{where}: expected one JSON object a line, got {_start(line)} ({error})") from error
            if not isinstance(record, dict):
                raise DataError(f"{where}: expected one JSON object a line, got {_start(line)}")
            if column not in record:
                raise DataError(_missing(where, column, record))
            text = record[column]
            if not isinstance(text, str | None):
                raise DataError(f"{where}: expected text in column {column!r}, got {type(text).__name__}")
            if text:
                # JSON can escape half of a surrogate pair; its bytes are kept, not refused.
                yield where, iter([text.encode("utf-8", "surrogatepass")])


def _read_parquet(file: SourceFile, column: str) -> Iterator[Pieces]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"reading {file.path} needs pyarrow: pip install 'lavagna[parquet]'") from error
    try:
        with pyarrow.parquet.ParquetFile(file.path) as table:
            names = table.schema_arrow.names
            if column not in names:
                raise DataError(_missing(str(file.path), column, names))
            kind = table.schema_arrow.field(column).type
            if str(kind) not in PARQUET_TEXT:
                raise DataError(f"{file.path}: expected text in column {column!r}, got {kind}")
            row = 0
            for batch in table.iter_batches(batch_size=256, columns=[column]):
                for text in batch.column(0):
                    row += 1
                    data = text.as_py() or b""
                    if data:
                        yield f"{file.path}:{row}", iter([data.encode() if isinstance(data, str) else data])
    except pyarrow.ArrowInvalid as error:
        raise DataError(f"expected a Parquet file, but {file.path} is none ({error})") from error


PARQUET_TEXT = {"string", "large_string", "string_view", "binary", "large_binary"}
READERS: dict[str, Callable[[SourceFile, str], Iterator[Pieces]]] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".parquet": _read_parquet,
}


def _missing(where: str, column: str, present: Iterable[str]) -> str:
    return f"{where}: expected a column {column!r}, but there are only: {', '.join(present) or 'none'}"


def _start(line: bytes) -> str:
    text = line.strip().decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "...")
