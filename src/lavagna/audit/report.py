"""The result of an audit, for people and for machines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from .finding import Finding, Status

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """All findings of an audit, in the order of the table of traps.

    Attributes:
        model: what was audited.
        facts: what was found out about it: input, size, what it takes.
        findings: one for each trap.
    """

    model: str
    facts: Mapping[str, str]
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no trap failed, those that were allowed apart."""
        return not self.failures

    @property
    def failures(self) -> list[Finding]:
        """What failed: roots first, then what may be their consequence."""
        failed = [f for f in self.findings if f.status is Status.FAIL]
        return sorted(failed, key=lambda f: bool(f.because_of))

    def __getitem__(self, trap: str) -> Finding:
        """The finding on a trap of this name."""
        return next(f for f in self.findings if f.trap == trap)

    def summary(self) -> str:
        """The result in one sentence."""
        count = {status: sum(f.status is status for f in self.findings) for status in Status}
        words = {
            Status.FAIL: "failed",
            Status.ACCEPTED: "failed as allowed",
            Status.PASS: "passed",
            Status.NOT_APPLICABLE: "not applicable",
        }
        parts = [f"{count[status]} {word}" for status, word in words.items() if count[status] or status is Status.FAIL]
        return f"{len(self.findings)} traps: {', '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """For JSON; numbers that JSON lacks are strings."""
        return {
            "model": self.model,
            "facts": dict(self.facts),
            "passed": self.passed,
            "failures": [f.trap for f in self.failures],
            "findings": [_finding(f) for f in self.findings],
        }

    def to_junit(self) -> str:
        """JUnit's XML: one test case for each trap."""
        count = {status: sum(f.status is status for f in self.findings) for status in Status}
        suite = ElementTree.Element(
            "testsuite",
            name=f"lavagna audit {self.model}",
            tests=str(len(self.findings)),
            failures=str(count[Status.FAIL]),
            errors="0",
            skipped=str(count[Status.NOT_APPLICABLE] + count[Status.ACCEPTED]),
        )
        for finding in self.findings:
            case = ElementTree.SubElement(suite, "testcase", classname="lavagna.audit", name=finding.trap)
            if finding.status is Status.FAIL:
                ElementTree.SubElement(case, "failure", message=finding.title).text = "\n".join(finding.details())
            elif finding.status is not Status.PASS:
                reason = finding.reason or "allowed"
                ElementTree.SubElement(case, "skipped", message=f"{finding.status}: {reason}")
        ElementTree.indent(suite)
        return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

    def __str__(self) -> str:
        """The failures in words."""
        lines = [f"{self.model}: {self.summary()}"]
        for finding in self.failures:
            lines += ["", f"{finding.title} ({finding.trap})", *(f"  {line}" for line in finding.details())]
        return "\n".join(lines)


def _finding(finding: Finding) -> dict[str, Any]:
    example = finding.example
    return {
        "trap": finding.trap,
        "title": finding.title,
        "status": str(finding.status),
        "reason": finding.reason,
        "measured": _plain(finding.measured),
        "tolerance": _plain(finding.tolerance),
        "unit": finding.unit,
        "example": None
        if example is None
        else {"tokens": example.tokens, "batch": example.batch, "detail": example.detail},
        "cause": finding.cause,
        "remedy": finding.remedy,
        "because_of": list(finding.because_of),
    }


def _plain(number: float | None) -> float | str | None:
    return number if number is None or math.isfinite(number) else str(number)
