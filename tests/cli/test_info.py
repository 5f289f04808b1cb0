"""`lavagna info` tells the truth about this process."""

from __future__ import annotations

import json
import re
import tomllib

import pytest
import torch

from lavagna import native
from lavagna.cli.info import EXTRAS, gather, info
from lavagna.ops import OPS
from tests.conftest import ROOT

pytestmark = pytest.mark.subset


def test_every_operator_is_listed_with_every_reason() -> None:
    entries = gather()["operators"]
    assert {entry["operator"] for entry in entries} == set(OPS)
    for entry in entries:
        expected = native.refusals(entry["operator"]) if entry["impl"] == "cpu" else []
        assert entry["reasons"] == expected


def test_every_operator_can_be_computed_here() -> None:
    usable = {entry["operator"] for entry in gather()["operators"] if not entry["reasons"]}
    assert usable == set(OPS)


def test_json_is_what_was_gathered(capsys: pytest.CaptureFixture[str]) -> None:
    info(as_json=True)
    assert json.loads(capsys.readouterr().out) == gather()


def test_tables_show_versions_reasons_and_remedies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXTRAS, "parquet", "a-distribution-that-nobody-has")
    info()
    out = capsys.readouterr().out
    assert torch.__version__ in out
    assert "not installed: pip install 'lavagna[parquet]'" in out
    for op in OPS:
        assert op in out
        for reason in native.refusals(op):
            assert reason in out


def test_the_native_part_tells_what_it_runs_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native.available():
        assert native.openmp() is False
        return
    assert gather()["native"]["instruction_set"] == native.instruction_set()
    info()
    out = capsys.readouterr().out
    assert f"runs on {native.instruction_set()}" in out
    assert f"on the {torch.get_num_threads()} threads of torch's OpenMP" in out
    monkeypatch.setattr(native, "_torch_openmp", lambda: None)
    info()
    assert "on one thread: torch has no OpenMP runtime here" in capsys.readouterr().out


def test_extras_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["optional-dependencies"]
    assert {extra: declared[extra][0].partition(">=")[0] for extra in EXTRAS} == EXTRAS
    assert set(declared) - set(EXTRAS) == {"peers", "dev"}


def test_every_extra_is_used() -> None:
    """An extra brings what some file of the package imports."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    unused = [
        extra
        for extra, name in EXTRAS.items()
        if not re.search(rf"^\s*(import|from) ([\w.]+\.)?{name}\b", sources, re.MULTILINE)
    ]
    assert unused == []
