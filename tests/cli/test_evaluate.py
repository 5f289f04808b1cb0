"""`lavagna evaluate` as people use it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lavagna.data import Corpus
from lavagna.evaluation import LEAST_DOCUMENTS, bits_per_byte, score
from lavagna.models import LanguageModel
from lavagna.training import read_metrics
from tests.cli.conftest import Command


def result(lavagna: Command, *arguments: object) -> dict[str, Any]:
    printed = lavagna("evaluate", *arguments, "--json")
    assert (printed.status, printed.err) == (0, "")
    return json.loads(printed.out)


def test_a_run_is_measured_on_what_it_held_out(lavagna: Command, trained: Path) -> None:
    """As its own evaluations did: the same documents, the same windows."""
    found = result(lavagna, trained)
    _, validation = Corpus.open(trained / "data").split(0.2)
    scores = score(LanguageModel.load(trained / "model"), validation, context=24, part=1)
    assert (scores.bytes > 0).sum() < LEAST_DOCUMENTS
    assert found["bits_per_byte"] == {"value": bits_per_byte([scores]).value, "low": None, "high": None}
    assert (found["context"], found["documents"], found["bytes"]) == (24, len(validation), validation.n_bytes)
    assert found["by_position"][0] | {"first": 0, "end": 8} == found["by_position"][0]
    assert sum(1 for _ in found["by_position"]) == 3
    assert abs(found["bits_per_byte"]["value"] - read_metrics(trained)[-1]["validation_bits_per_byte"]) < 1
    assert result(lavagna, trained / "model") == found


def test_other_data_and_other_parts(lavagna: Command, trained: Path, texts: Path) -> None:
    """A run's own data, given by name, hold what it was trained on: only the held-out part is scored then."""
    held_out = result(lavagna, trained)
    assert (held_out["split"], result(lavagna, trained, texts)) == ("validation", held_out)
    everything = result(lavagna, trained, texts, "--split", "all")
    assert (everything["split"], everything["documents"]) == ("all", 12)
    assert held_out["documents"] < 12
    assert result(lavagna, trained, "--split", "all") == everything
    first = result(lavagna, trained, sorted(texts.rglob("*.*"))[0])
    assert (first["split"], first["documents"]) == ("all", 1)
    sample = result(lavagna, trained, texts, "--split", "all", "--max-tokens", 60)
    assert sample["bytes"] < everything["bytes"]


def test_documents_read_through_with_one_state(lavagna: Command, trained: Path, texts: Path) -> None:
    everything = (texts, "--split", "all")
    through = result(lavagna, trained, *everything, "--context", 0)
    assert through["context"] == 0
    assert through["by_position"][-1]["end"] == 128
    assert result(lavagna, trained, *everything, "--context", 16)["by_position"][-1]["end"] == 16
    assert result(lavagna, trained, *everything, "--context", 0, "--batch-size", 3)["bits_per_byte"][
        "value"
    ] == pytest.approx(through["bits_per_byte"]["value"], rel=1e-5)


def test_a_model_without_its_run(lavagna: Command, trained: Path, texts: Path, tmp_path: Path) -> None:
    """It still knows how long its windows were; one that was not trained here reads each document through."""
    copied = shutil.copytree(trained / "model", tmp_path / "model")
    assert result(lavagna, copied, texts) == {**result(lavagna, trained, texts), "model": str(copied)}
    default = result(lavagna, copied, "--max-tokens", 2000)
    assert default["bytes"] < 2100  # of the standard library's held-out part
    (copied / "training.json").unlink()
    assert result(lavagna, copied, texts)["context"] == 0


def test_columns(lavagna: Command, trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text('{"body": "memory fades"}\n{"body": "a page"}\n')
    found = result(lavagna, trained, data, "--column", "body")
    assert (found["documents"], found["bytes"]) == (2, 18)


def test_a_table_for_people(lavagna: Command, trained: Path, texts: Path, tmp_path: Path) -> None:
    found = result(lavagna, trained, "--split", "all")
    printed = lavagna("evaluate", trained, "--split", "all")
    lines = printed.out.splitlines()
    total = found["bits_per_byte"]
    ends = f"{total['low']:.4f} to {total['high']:.4f}"
    assert lines[0] == f"{total['value']:.4f} bits per byte (95 % interval: {ends})"
    assert found["parts"] > found["documents"] == 12
    scores = score(LanguageModel.load(trained / "model"), Corpus.open(trained / "data"), context=24, part=1)
    assert (total["value"], total["low"], total["high"]) == pytest.approx(bits_per_byte([scores]))
    assert lines[1] == (
        f"12 documents in {found['parts']} parts, {found['bytes']:,} bytes (all of the data), "
        "read in windows of 24 tokens"
    )
    assert lines[3].split() == ["position", "bits", "per", "byte", "95", "%", "interval"]
    assert [line.split()[0] for line in lines[4:]] == ["0–7", "8–15", "16–31"]
    (tmp_path / "one").write_text("one document alone")
    alone = lavagna("evaluate", trained, tmp_path / "one", "--context", 0).out
    assert "bits per byte (95 % interval: unknown, of fewer than 6 documents)" in alone
    assert "1 document, 18 bytes (all of the data), read through" in alone
    unknown = result(lavagna, trained, tmp_path / "one", "--context", 0)["bits_per_byte"]
    assert (unknown["low"], unknown["high"]) == (None, None)


def test_nothing_is_left_behind(
    lavagna: Command, trained: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = sorted(trained.rglob("*"))
    result(lavagna, trained, texts)
    assert list(tmp_path.iterdir()) == []
    assert sorted(trained.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "expected a model or a run, but 'nothing' does not exist"),
        (["RUN", "nothing"], "expected a file, a folder or a glob pattern, but 'nothing' does not exist"),
        (["RUN", "empty"], "expected text, but there is none in empty"),
        (["RUN", "--context", "-1"], "--context must be at least 0, got -1"),
        (["RUN", "--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["RUN", "--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["broken"], "expected how the model was trained in 'broken/training.json', got something else"),
        (["RUN", "data.jsonl"], "expected a column 'text', but there are only: body"),
    ],
)
def test_bad_input_is_one_sentence(
    lavagna: Command,
    trained: Path,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("")
    shutil.copytree(trained / "model", tmp_path / "broken")
    (tmp_path / "broken" / "training.json").write_text("{")
    (tmp_path / "data.jsonl").write_text('{"body": "x"}\n')
    printed = lavagna("evaluate", *[str(trained) if a == "RUN" else a for a in arguments])
    assert printed.status == 2
    assert printed.out == ""
    assert message in printed.err
    assert printed.err.count("\n") == 1
