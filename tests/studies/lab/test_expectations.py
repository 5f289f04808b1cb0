"""Comparing values with what was expected; and the expectations themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lavagna.errors import ConfigError
from lavagna.studies.lab import expectations
from lavagna.studies.lab.expectations import check, expected
from lavagna.studies.lab.experiments import EXPERIMENTS, QUESTIONS, load
from lavagna.studies.lab.reproduce import PAGES

VALUES = {"a": {"b": 0.12345, "n": 3, "yes": True, "list": [1.0, 2.25]}}


def met(values: dict[str, Any], kind: str, figure: str, wanted: Any) -> bool:
    (one,) = check(values, {kind: {figure: wanted}})
    return one.met


@pytest.mark.parametrize(
    ("kind", "figure", "wanted", "is_met"),
    [
        ("printed", "a.b", "0.123", True),
        ("printed", "a.b", "0.12345", True),
        ("printed", "a.b", "0.12346", False),
        ("printed", "a.b", "0.124", False),
        ("printed", "a.n", "3", True),
        ("printed", "a.n", "4", False),
        ("printed", "a.list", ["1.0", "2.25"], True),
        ("printed", "a.list", ["1.0", "2.26"], False),
        ("printed", "a.list", ["1.0"], False),
        ("printed", "a.list", "1.0", False),
        ("printed", "a.missing", "0.1", False),
        ("printed", "a.b.c", "0.1", False),
        ("equal", "a.n", 3, True),
        ("equal", "a.n", 4, False),
        ("equal", "a.yes", True, True),
        ("equal", "a.yes", 1, False),
        ("equal", "a.list", [1.0, 2.25], True),
        ("equal", "a.missing", 3, False),
        ("bounds", "a.b", {"most": 0.2, "reason": "r"}, True),
        ("bounds", "a.b", {"least": 0.2, "reason": "r"}, False),
        ("bounds", "a.b", {"least": 0.1, "most": 0.12, "reason": "r"}, False),
        ("bounds", "a.b", {"least": 0.12345, "most": 0.12345, "reason": "r"}, True),
        ("bounds", "a.list", {"least": 0, "reason": "r"}, False),
        ("bounds", "a.missing", {"least": 0, "reason": "r"}, False),
    ],
)
def test_check_by_hand(kind: str, figure: str, wanted: Any, is_met: bool) -> None:
    assert met(VALUES, kind, figure, wanted) is is_met


def test_no_bound_holds_what_is_no_number() -> None:
    assert not met({"a": float("nan")}, "bounds", "a", {"most": 1, "reason": "r"})


def test_what_is_missed_is_said() -> None:
    printed, bound = check(
        {"gap": 0.5},
        {"printed": {"gap": "0.25"}, "bounds": {"gap": {"least": 1, "most": 2, "reason": "rounding"}}},
    )
    assert str(printed) == "gap: expected 0.25, got 0.50"
    assert str(bound) == "gap: expected at least 1 and at most 2, got 0.5"
    assert bound.reason == "rounding"
    (missing,) = check({}, {"equal": {"n": 3}})
    assert str(missing) == "n: expected 3, got nothing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[print]\na = '1'", "t.toml: expected the tables printed, equal, bounds, got print"),
        ("[bounds]\na = { most = 1 }", "t.toml: a: expected least, most or both, and a reason"),
        ("[bounds]\na = { reason = 'r' }", "t.toml: a: expected least, most or both, and a reason"),
        ("[bounds]\na = { most = 1, at_least = 0, reason = 'r' }", "t.toml: a: expected least, most or both"),
    ],
)
def test_mistaken_expectations_are_refused(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expectations, "FOLDER", tmp_path)
    (tmp_path / "t.toml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        expected("t")


def test_every_experiment_has_expectations_and_a_page_and_none_is_left_over() -> None:
    for name in QUESTIONS:
        assert sum(map(len, expected(name).values())) > 0, name
    assert {path.stem for path in expectations.FOLDER.glob("*.toml")} == set(QUESTIONS)
    assert {path.stem for path in PAGES.glob("*.md")} == {*QUESTIONS, "README", "_page"}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_line_of_the_table_leads_to_an_experiment(name: str) -> None:
    experiment = load(name)
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    for figure in experiment.figures:
        assert f'figure("{figure}")' in page
