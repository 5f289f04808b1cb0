"""The exercises: their Python runs as printed, and their text has no number that it does not show."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDER = ROOT / "docs" / "exercises"
EXERCISES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")

each_exercise = pytest.mark.parametrize("path", EXERCISES, ids=[path.stem for path in EXERCISES])

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"(?<![A-Za-z_\d])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]\d+)?")


def failures(text: str) -> str:
    """Run all Python of a page in one session; what did not come out as printed."""
    code = "".join(_FENCE.findall(text))
    examples = doctest.DocTestParser().get_doctest(code, {}, "the page", None, 0)
    assert examples.examples
    report: list[str] = []
    doctest.DocTestRunner().run(examples, out=report.append)
    return "".join(report)


def numbers(text: str) -> set[str]:
    """Numbers as written, but for thousands' commas and zeros at the end of a fraction."""
    found = (number.replace(",", "") for number in _NUMBER.findall(text.replace("**", "^")))
    return {number.rstrip("0").rstrip(".") if "." in number and "e" not in number else number for number in found}


def unfounded(text: str) -> set[str]:
    """Numbers of the prose that neither stand in the page's Python nor in what it prints."""
    prose = re.sub(r"^\s*(\*\*)?\d\.(\*\*)? ", "", _FENCE.sub("", text), flags=re.MULTILINE)  # numbers of the questions
    prose = re.sub(r"\b(in|of|row) \d\.", "", prose)  # and mentions of them
    return numbers(prose) - numbers("".join(_FENCE.findall(text))) - {"0", "1", "2"}


@each_exercise
def test_the_solution_comes_out_as_printed(path: Path) -> None:
    assert failures(path.read_text(encoding="utf-8")) == ""


@each_exercise
def test_every_number_of_the_text_is_one_of_the_solution(path: Path) -> None:
    assert unfounded(path.read_text(encoding="utf-8")) == set()


@each_exercise
def test_asks_first_and_answers_each_question(path: Path) -> None:
    questions, _, solution = path.read_text(encoding="utf-8").partition("\n## Solution\n")
    asked = re.findall(r"^(\d)\. ", questions, re.MULTILINE)
    assert asked
    assert re.findall(r"^\*\*(\d)\.\*\*", solution, re.MULTILINE) == asked


def test_all_are_listed() -> None:
    listed = re.findall(r"\]\((\S+\.md)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert listed == [path.name for path in EXERCISES]


PAGE = "It is 6.50, or 1,200.\n\n```python\n>>> 13 / 2, 12 * 100\n(6.5, 1200)\n```\n"


def test_the_checks_see_what_is_wrong() -> None:
    assert failures(PAGE) == ""
    assert unfounded(PAGE) == set()
    assert "Expected" in failures(PAGE.replace("(6.5, 1200)", "(6.5, 1201)"))
    assert unfounded(PAGE.replace("6.50", "6.51")) == {"6.51"}
    assert unfounded(PAGE.replace("1,200.", "1,201.")) == {"1201"}
