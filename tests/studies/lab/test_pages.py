"""The committed pages are what their committed numbers and our words give, and they reproduce what was expected."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

import pytest

from lavagna.studies.lab import load, page
from lavagna.studies.lab.copy_sort_torch import experiment
from lavagna.studies.lab.expectations import check, expected
from lavagna.studies.lab.experiment import Experiment
from lavagna.studies.lab.experiments import EXPERIMENTS, QUESTIONS
from lavagna.studies.lab.reproduce import Result

PAGES = Path(__file__).parents[3] / "docs" / "lab"


def found(name: str) -> Experiment:
    return load(name) if name in EXPERIMENTS else experiment([])


@cache
def committed(name: str) -> Result:
    saved = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    return Result(name, saved["values"], saved["made"], check(saved["values"], expected(name)))


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_page_follows_from_its_numbers(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert text == page(committed(name), found(name))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (PAGES / target).is_file(), target
    assert "## What was asked" in text
    assert "## What it does not show" in text


def test_attention_alone_is_compared_with_no_other() -> None:
    whole = committed("copy-sort-torch")
    rows = {row: at for row, at in whole.values["rows"].items() if row.startswith("attention")}
    text = page(whole._replace(values={"rows": rows}), experiment([]))
    assert "0 of 0" not in text
    assert "the others" not in text.partition("## What came out")[2].lower()


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_committed_run_reproduced_everything(name: str) -> None:
    assert [str(one) for one in committed(name).missed] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_figures_are_small(name: str) -> None:
    figures = {f"{name}-{figure}.png" for figure in found(name).figures}
    for figure in figures:
        assert 1_000 < (PAGES / figure).stat().st_size < 60_000


def test_every_figure_belongs_to_a_page() -> None:
    figures = {f"{name}-{figure}.png" for name in QUESTIONS for figure in found(name).figures}
    assert {path.name for path in PAGES.glob("*.png")} == figures


def test_the_index_leads_to_every_page() -> None:
    text = (PAGES / "README.md").read_text(encoding="utf-8")
    for name in QUESTIONS:
        assert f"({name}.md)" in text
