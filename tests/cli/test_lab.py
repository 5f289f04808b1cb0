"""lavagna lab: what it lists, writes, refuses, and how it says that something was not reproduced."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from lavagna.studies.lab import EXPERIMENTS, copy_sort_torch, expectations
from tests.cli.conftest import Command


def test_the_list_has_every_experiment_and_its_question(lavagna: Command) -> None:
    printed = lavagna("lab", "list")
    assert (printed.status, printed.err) == (0, "")
    lines = printed.out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    for line, (_, question) in zip(lines, EXPERIMENTS.values(), strict=True):
        assert line.strip().endswith(question)
    assert lavagna("lab").out == printed.out


def test_experiments_are_shown_written_and_counted(lavagna: Command, tmp_path: Path) -> None:
    printed = lavagna("lab", "mask, parameters", "--out", tmp_path)
    assert printed.status == 0
    assert "0.031" in printed.out
    assert "3,152,384" in printed.out
    assert printed.out.splitlines()[-1] == "10 of 10 expected figures reproduced"
    assert {path.name for path in tmp_path.iterdir()} == {
        *("mask.json", "mask.md", "mask-weights.png"),
        *("parameters.json", "parameters.md"),
    }
    saved = json.loads((tmp_path / "mask.json").read_text(encoding="utf-8"))
    assert saved["made"]["command"] == "lavagna lab mask"
    assert saved["values"]["gap"] == pytest.approx(0.8317, abs=5e-5)
    page = (tmp_path / "mask.md").read_text(encoding="utf-8")
    assert "3 of 3 expected figures" in page
    assert "(mask-weights.png)" in page


def test_what_was_not_reproduced_is_said_and_the_status_is_1(
    lavagna: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mask.toml").write_text(
        "[printed]\ngap = '0.9999'\n[bounds]\ngap = { most = 0.5, reason = 'it is said so' }", encoding="utf-8"
    )
    monkeypatch.setattr(expectations, "FOLDER", tmp_path)
    printed = lavagna("lab", "mask", "--out", tmp_path / "out")
    assert printed.status == 1
    assert printed.out.splitlines()[-3:] == [
        "0 of 2 expected figures reproduced",
        "not reproduced: mask: gap: expected 0.9999, got 0.8317",
        "not reproduced: mask: gap: expected at most 0.5, got 0.83172 (it is said so)",
    ]
    page = (tmp_path / "out" / "mask.md").read_text(encoding="utf-8")
    assert "**This run did not reproduce every figure**" in page
    assert "- gap: expected at most 0.5, got 0.83172 (it is said so)" in page


def test_all_writes_the_page_that_leads_to_the_others(
    lavagna: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in list(EXPERIMENTS):
        if name not in ("mask", "heads"):
            monkeypatch.delitem(EXPERIMENTS, name)
    assert lavagna("lab", "all", "--out", tmp_path).status == 0
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| [mask](mask.md) | What does a mask after the softmax do wrong? | 3 of 3 |" in text
    assert "| [heads](heads.md) |" in text


def test_models_of_torch_stand_beside_attention(
    lavagna: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_sort_torch, "measure", partial(copy_sort_torch.measure, steps=25))
    arguments = ("copy-sort", "--engine", "torch", "--mixer", "retnet", "--out", tmp_path)
    printed = lavagna("lab", *arguments)
    assert printed.status == 1  # nothing is learned in 25 steps, and that is said
    assert "not reproduced: copy-sort-torch: rows.attention.copy.per_token: expected at least 0.99" in printed.out
    for row in ("attention", "attention without positions", "retnet"):
        assert f"\n{row} " in printed.out
    saved = json.loads((tmp_path / "copy-sort-torch.json").read_text(encoding="utf-8"))
    assert saved["made"]["command"] == "lavagna lab copy-sort --engine torch --mixer retnet"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("msak",), "unknown experiment 'msak'; did you mean 'mask'?"),
        (("mask,,heads",), "unknown experiment ''"),
        (("mask,mask",), "expected each experiment once, got mask 2 times"),
        (("mask,all",), "expected all alone, or names of experiments, got 'mask,all'"),
        (("--mixer", "mamba"), "--mixer chooses among the models of torch: it goes with --engine torch"),
        (("--engine", "torch", "--mixer", "mamba"), "--engine torch: expected copy-sort"),
        (("copy-sort", "--engine", "torch", "--mixer", "mamba,mamba"), "expected each mixer once, got mamba 2 times"),
        (("mask", "--engine", "jax"), "unknown engine 'jax'"),
        (("mask", "--mixer", "mamba"), "--mixer chooses among the models of torch: it goes with --engine torch"),
        (("mask", "--engine", "torch", "--mixer", "mamba"), "--engine torch: expected copy-sort"),
        (("copy-sort", "--engine", "torch"), "--engine torch: expected --mixer NAME or --mixer all"),
        (("copy-sort", "--engine", "torch", "--mixer", "mamab"), "unknown mixer 'mamab'; did you mean 'mamba'?"),
    ],
)
def test_refusals_are_one_sentence(arguments: tuple[str, ...], message: str, lavagna: Command, tmp_path: Path) -> None:
    printed = lavagna("lab", *arguments, "--out", tmp_path / "out")
    assert (printed.status, printed.out) == (2, "")
    assert printed.err.startswith(f"lavagna: {message}")
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()
