"""A report for people, for JSON and for CI."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from lavagna.audit import Example, Finding, Report, Status
from lavagna.audit.finding import Measurement

FINDINGS = (
    Finding("crash", "the model raises", Status.PASS, measured=0.0, tolerance=0.0, unit="failed calls"),
    Finding("scale", "scale forgotten", Status.NOT_APPLICABLE, "no softmax over tokens was seen"),
    Finding(
        "padding",
        "padding attended",
        Status.FAIL,
        "",
        0.25,
        1e-9,
        "of the output",
        Example(2, 1, "outputs of real tokens"),
        "the mask is ignored",
        "hide padded keys",
        ("future-leak",),
    ),
    Finding(
        "future-leak",
        "future leaks into the past",
        Status.FAIL,
        "a note",
        float("inf"),
        1e-9,
        "of the output",
        Example(3, 2, "changing token 1"),
        "no mask",
        "mask",
    ),
    Finding("no-position", "no position", Status.ACCEPTED, "", 1.0, 0.0, "", Example(13, 1, "constant"), "c", "r"),
)
REPORT = Report("a model", {"input": "reads tokens below 7"}, FINDINGS)


def test_roots_come_first() -> None:
    assert [finding.trap for finding in REPORT.failures] == ["future-leak", "padding"]
    assert not REPORT.passed
    assert Report("sound", {}, FINDINGS[:2]).passed


def test_words() -> None:
    assert REPORT.summary() == "5 traps: 2 failed, 1 failed as allowed, 1 passed, 1 not applicable"
    assert str(REPORT).splitlines() == [
        "a model: 5 traps: 2 failed, 1 failed as allowed, 1 passed, 1 not applicable",
        "",
        "future leaks into the past (future-leak)",
        "  measured: ∞ of the output, allowed 1e-09",
        "  smallest example: 2 rows of 3 tokens: changing token 1",
        "  seen: a note",
        "  likely cause: no mask",
        "  remedy: mask",
        "",
        "padding attended (padding)",
        "  measured: 0.25 of the output, allowed 1e-09",
        "  smallest example: 1 row of 2 tokens: outputs of real tokens",
        "  may be a consequence of: future-leak",
        "  likely cause: the mask is ignored",
        "  remedy: hide padded keys",
    ]


def test_json_holds_everything_that_json_can() -> None:
    read = json.loads(json.dumps(REPORT.to_dict(), allow_nan=False))
    assert read["failures"] == ["future-leak", "padding"]
    assert read["passed"] is False
    leak = read["findings"][3]
    assert leak["measured"] == "inf"
    assert leak["example"] == {"tokens": 3, "batch": 2, "detail": "changing token 1"}
    assert read["findings"][2]["because_of"] == ["future-leak"]


def test_junit_counts_and_explains() -> None:
    suite = ElementTree.fromstring(REPORT.to_junit())
    assert suite.tag == "testsuite"
    assert {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")} == {
        "tests": "5",
        "failures": "2",
        "errors": "0",
        "skipped": "2",
    }
    cases = {case.get("name"): case for case in suite}
    failure = cases["future-leak"].find("failure")
    assert failure is not None
    assert "likely cause: no mask" in (failure.text or "")
    skipped = cases["scale"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "not applicable: no softmax over tokens was seen"
    assert len(cases["crash"]) == 0


@pytest.mark.parametrize(
    ("value", "fails"), [(0.0, False), (1e-9, False), (2e-9, True), (float("nan"), True), (float("inf"), True)]
)
def test_what_is_not_at_most_the_tolerance_fails(value: float, fails: bool) -> None:
    assert Measurement(value, 1e-9, Example(1, 1, "")).fails is fails
