"""Files and folders that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lavagna.files import atomic_file, atomic_folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "file"
    with atomic_file(target) as temporary:
        temporary.write_text("half")
        assert not target.exists()
        temporary.write_text("whole")
    assert target.read_text() == "whole"
    assert names(target.parent) == ["file"]


def test_a_file_is_kept_when_its_successor_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def fail() -> None:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "below" / "folder"
    with atomic_folder(target) as temporary:
        (temporary / "a").write_text("1")
        assert not target.exists()
    assert names(target) == ["a"]
    with atomic_folder(target) as temporary:
        (temporary / "b").write_text("2")
        assert names(target) == ["a"]
    assert names(target) == ["b"]
    assert names(target.parent) == ["folder"]


def test_a_folder_is_kept_when_its_successor_fails(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "folder") as temporary:
        (temporary / "a").write_text("1")

    def fail() -> None:
        with atomic_folder(tmp_path / "folder") as temporary:
            (temporary / "b").write_text("2")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert names(tmp_path / "folder") == ["a"]
    assert names(tmp_path) == ["folder"]


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_permissions_are_those_of_anything_new(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with atomic_file(tmp_path / "file") as temporary:
            temporary.write_text("")
        with atomic_folder(tmp_path / "folder"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~umask
