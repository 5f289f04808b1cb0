"""Documents come from everywhere as they stand there, and every fault says what was expected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lavagna.data import documents, stdlib_folder
from lavagna.data.sources import PIECE, find_files, read_files
from lavagna.errors import DataError


def texts(*args: object, **options: object) -> list[bytes]:
    return [document.data for document in documents(*args, **options)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    for name, data in {
        "b.txt": b"bee",
        "a.md": "così è".encode(),
        "sub/c.txt": b"sea",
        "sub/deeper/d.md": b"dee",
        "empty.txt": b"",
        "image.png": b"\x89PNG\0\0",
        ".hidden.txt": b"no",
        ".git/config": b"no",
        "made/CACHEDIR.TAG": b"Signature: ...",
        "made/e.txt": b"no",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / "dangling").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    return root


def test_a_file_is_one_document(folder: Path) -> None:
    (document,) = documents(folder / "a.md")
    assert document == (str(folder / "a.md"), "così è".encode())
    assert texts(str(folder / "b.txt")) == [b"bee"]


def test_a_folder_is_read_sorted_without_hidden_binary_empty_and_made_files(folder: Path) -> None:
    names = [Path(document.name).relative_to(folder).as_posix() for document in documents(folder)]
    assert names == ["a.md", "b.txt", "sub/c.txt", "sub/deeper/d.md"]


def test_a_marked_folder_is_read_when_it_is_the_source(folder: Path) -> None:
    assert b"no" in texts(folder / "made")


def test_a_named_file_is_read_whatever_it_holds(folder: Path) -> None:
    assert texts(folder / "image.png") == [b"\x89PNG\0\0"]
    assert texts(folder / ".hidden.txt") == [b"no"]
    assert b"\x89PNG\0\0" in texts([folder, folder / "image.png"])


def test_a_glob_pattern(folder: Path) -> None:
    assert texts(f"{folder}/*.md") == ["così è".encode()]
    assert texts(f"{folder}/**/*.md") == ["così è".encode(), b"dee"]
    assert texts(f"{folder}/su*") == [b"sea", b"dee"]
    assert texts(f"{folder}/*.*") == ["così è".encode(), b"bee"]  # the binary file is left out here too


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "part[1].txt").write_bytes(b"one")
    (tmp_path / "part1.txt").write_bytes(b"other")
    assert texts(tmp_path / "part[1].txt") == [b"one"]


def test_several_sources_each_file_once(folder: Path) -> None:
    assert texts([folder / "sub", f"{folder}/b*", folder]) == [b"sea", b"dee", b"bee", "così è".encode()]


def test_pattern_keeps_files_by_the_end_of_their_path(folder: Path) -> None:
    assert texts(folder, pattern="*.txt") == [b"bee", b"sea"]
    assert texts(folder, pattern="sub/*.txt") == [b"sea"]


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    lines = [{"text": "è", "body": "1"}, {"text": None}, {"text": ""}, {"text": "two\nlines"}]
    file.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert [*documents(file)] == [(f"{file}:1", "è".encode()), (f"{file}:7", b"two\nlines")]
    file.rename(tmp_path / "a.ndjson")
    with pytest.raises(DataError, match=r"a\.ndjson:3: expected a column 'body', but there are only: text$"):
        texts(tmp_path / "a.ndjson", column="body")


def test_half_a_surrogate_pair_keeps_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "\\ud800"}')
    assert texts(tmp_path / "a.jsonl") == [b"\xed\xa0\x80"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": ', r"a\.jsonl:2: expected one JSON object a line, got '\{\"text\":' \(Expecting value"),
        (b'{"text": "\xff"}', r"a\.jsonl:2: expected one JSON object a line, got .*can't decode byte"),
        (b'["text"]', r"a\.jsonl:2: expected one JSON object a line, got '\[\"text\"\]'$"),
        (b'{"text": 7}', r"a\.jsonl:2: expected text in column 'text', got int$"),
        (b'{"body": "x", "id": 1}', r"a\.jsonl:2: expected a column 'text', but there are only: body, id$"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "good"}\n' + line + b"\n")
    stream = documents(tmp_path / "a.jsonl")
    assert next(stream).data == b"good"
    with pytest.raises(DataError, match=message):
        next(stream)


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    file = tmp_path / "a.parquet"
    rows = ["è", None, "", *(f"row {n}" for n in range(600))]
    table = pyarrow.table({"text": rows, "id": range(603), "raw": [b"\xff"] * 603})
    parquet.write_table(table, file, row_group_size=100)
    found = [*documents(tmp_path)]  # found in a folder, though it is a binary file
    assert [document.data.decode() for document in found] == [row for row in rows if row]
    assert [found[0].name, found[1].name] == [f"{file}:1", f"{file}:4"]
    assert texts(file, column="raw") == [b"\xff"] * 603
    with pytest.raises(DataError, match=r"expected a column 'body', but there are only: text, id, raw$"):
        texts(file, column="body")
    with pytest.raises(DataError, match="expected text in column 'id', got int64"):
        texts(file, column="id")
    file.write_bytes(b"no parquet")
    with pytest.raises(DataError, match=r"expected a Parquet file, but .*a.parquet is none"):
        texts(file)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow: pip install 'lavagna\[parquet\]'"):
        texts(tmp_path)


def test_the_embedded_default_is_the_standard_library_without_its_tests() -> None:
    files = [file.path.relative_to(stdlib_folder()) for file in find_files("stdlib")]
    assert files == [file.path.relative_to(stdlib_folder()) for file in find_files(None)]
    assert files == sorted(files)
    assert {Path("os.py"), Path("json/decoder.py"), Path("asyncio/events.py")} <= set(files)
    assert {file.suffix for file in files} == {".py"}
    assert not {"test", "tests", "idle_test", "site-packages", "__pycache__"} & {p for f in files for p in f.parts}
    size = sum(len(document.data) for document in documents())
    assert 8e6 < size < 20e6


def test_pattern_on_the_embedded_default() -> None:
    names = [Path(document.name).name for document in documents(pattern="json/*.py")]
    assert names == ["__init__.py", "decoder.py", "encoder.py", "scanner.py", "tool.py"]


def test_a_python_without_sources_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match=r"standard library's sources in .* has none there"):
        documents()


def test_what_is_missing_is_named_at_once(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a file, a folder or a glob pattern, but 'nowhere.txt'"):
        documents("nowhere.txt")
    with pytest.raises(DataError, match=r"expected files, but .*\.csv' has or matches none"):
        documents(f"{folder}/*.csv")
    with pytest.raises(DataError, match=r"expected files that match '\*\.csv', but none of the 6 of"):
        documents(folder, pattern="*.csv")
    with pytest.raises(DataError, match=r"match '\*\.md', but none of the 1 of"):
        documents(folder / "b.txt", pattern="*.md")
    with pytest.raises(DataError, match="got an empty list"):
        documents([])
    (tmp_path / "bare").mkdir()
    with pytest.raises(DataError, match=r"expected files, but .*bare' has or matches none"):
        documents(tmp_path / "bare")


def test_nothing_but_empty_and_binary_files(tmp_path: Path) -> None:
    for name, data in {"1": b"", "2": b"\0", "3": b"", "4": b""}.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"expected text, but there is none in .*1, .*2, .*3, \.\.\. \(only"):
        texts(tmp_path)
    with pytest.raises(DataError, match=r"there is none in .*1 "):
        texts(tmp_path / "1")


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(b"a")
    stream = documents(file)
    file.unlink()
    with pytest.raises(DataError, match=r"cannot read .*a\.txt: No such file"):
        next(stream)


def test_a_long_file_comes_in_pieces_and_reports_its_progress(tmp_path: Path) -> None:
    data = bytes(range(1, 256)) * (3 * PIECE // 255)
    (tmp_path / "a.txt").write_bytes(data)
    (tmp_path / "b.jsonl").write_text('{"text": "x"}\n')
    seen: list[tuple[int, int]] = []
    read: Iterator = read_files(find_files(tmp_path), "text", lambda *at: seen.append(at))
    _, pieces = next(read)
    first = next(pieces)
    assert len(first) == PIECE
    assert first + b"".join(pieces) == data
    assert [b"".join(pieces) for _, pieces in read] == [b"x"]
    total = len(data) + 14
    assert seen == sorted(seen)
    assert seen[0] == (PIECE, total)
    assert seen[-1] == (total, total)


def test_readers_of_formats_are_imported_when_needed() -> None:
    script = "import sys, lavagna.data; print({'pyarrow', 'tokenizers'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
