"""`lavagna zoo`: the table, the drawing, whose keys they are, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavagna.mixers.registry import MIXERS
from lavagna.studies.zoo import lines

from .conftest import Command


def test_it_prints_the_registry_and_draws_each_mixer(lavagna: Command, tmp_path: Path) -> None:
    printed = lavagna("zoo", "--out", tmp_path / "new" / "folder", "--text", "ab")
    assert printed.status == 0, printed.err
    for line in lines():
        assert f"{line.mixer:<18}{line.recurrence}" in printed.out
        assert line.survives in printed.out
    assert "'b', the last token of 'a b'" in printed.out
    assert "untrained" in printed.out
    for name in MIXERS:
        assert printed.out.count(name) >= 2  # in the table and above its matrix
    figure = tmp_path / "new" / "folder" / "zoo.png"
    assert f"figure: {figure}" in printed.out
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in figure.parent.iterdir()] == ["zoo.png"]


def test_without_a_folder_it_writes_nothing(lavagna: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = lavagna("zoo", "--text", "a long text\nof more tokens than are drawn")
    assert printed.status == 0, printed.err
    assert "'t', the last token of 'a ␣ l o n g ␣ t'" in printed.out
    assert not list(tmp_path.iterdir())


def test_a_trained_model_has_its_own_mixers_alone(lavagna: Command, trained: Path) -> None:
    printed = lavagna("zoo", "--model", trained, "--text", "è\n")
    assert printed.status == 0, printed.err
    assert f"trained weights of {trained}" in printed.out
    assert "'0a', the last token of 'c3 a8 0a'" in printed.out
    drawn = printed.out.split("carries nothing on")[1]
    assert {name for name in MIXERS if name in drawn.split()} == {"gated_deltanet", "attention"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", ""], "at least one character"),
        (["--model", "nowhere"], "nowhere"),
        (["--out", "file"], "a folder to draw in"),
        (["--out", "file/below"], "a folder to draw in"),
    ],
)
def test_refusals_are_one_sentence(
    lavagna: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    printed = lavagna("zoo", *arguments)
    assert printed.status == 2
    assert message in printed.err
    assert len(printed.err.splitlines()) == 1
    assert (tmp_path / "file").read_text() == ""
