"""What a check measures and what an audit says of it."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Example", "Finding", "Measurement", "ModelError", "NotApplicable", "Status", "one_line"]


class NotApplicable(Exception):
    """A check does not apply to this model; the message is the reason."""


class Status(StrEnum):
    """The verdict on a trap."""

    PASS = "pass"
    FAIL = "fail"
    ACCEPTED = "accepted"
    NOT_APPLICABLE = "not applicable"


class Example(NamedTuple):
    """An input, small where it made a model fail.

    Fields:
        tokens: T, of the whole sequence.
        batch: B.
        detail: what was done with it.
    """

    tokens: int
    batch: int
    detail: str

    def __str__(self) -> str:
        rows = "1 row" if self.batch == 1 else f"{self.batch} rows"
        count = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        return f"{rows} of {count}: {self.detail}"


class ModelError(Exception):
    """The audited model raised, or returned what no sequence model returns.

    Args:
        what: it did, in one line that goes on from "the model".
        example: the input.
    """

    def __init__(self, what: str, example: Example | None = None) -> None:
        super().__init__(what)
        self.example = example


def one_line(error: BaseException) -> str:
    """An exception in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}{'…' if len(text) > 200 else ''}".removesuffix(": ")


class Measurement(NamedTuple):
    """One number that a check measured. It fails where the value is not at most the tolerance (NaN is not).

    Fields:
        value: what was measured.
        tolerance: the most that a sound model reaches.
        example: the input.
        note: what a reader should know of the number beyond the trap's own words.
        cause: a likelier cause than the trap's own, where the measurement tells.
    """

    value: float
    tolerance: float
    example: Example
    note: str = ""
    cause: str = ""

    @property
    def fails(self) -> bool:
        return not self.value <= self.tolerance

    @property
    def share(self) -> float:
        """The value as a share of the tolerance."""
        return self.value / self.tolerance if self.tolerance else (0.0 if self.value == 0 else float("inf"))


class Finding(NamedTuple):
    """The verdict on one trap.

    Fields:
        trap: its name.
        title: its name in words.
        status: pass, fail, accepted (a failure that the caller allowed) or not applicable.
        reason: why it does not apply, what was found, or what remains to be said.
        measured, tolerance: the numbers; None where nothing was measured.
        unit: of both.
        example: the smallest failing input, or the one nearest to failing.
        cause, remedy: of a failure, the likely ones.
        because_of: names of failures that this one is a declared consequence of.
    """

    trap: str
    title: str
    status: Status
    reason: str = ""
    measured: float | None = None
    tolerance: float | None = None
    unit: str = ""
    example: Example | None = None
    cause: str = ""
    remedy: str = ""
    because_of: tuple[str, ...] = ()

    def figures(self) -> str:
        """The measured number, its unit and what is allowed; empty if nothing was measured."""
        if self.measured is None or self.tolerance is None:
            return ""
        return f"{_short(self.measured)} {self.unit}, allowed {_short(self.tolerance)}"

    def details(self) -> list[str]:
        """All there is to say of a failure, in lines."""
        lines = []
        if self.measured is not None:
            lines.append(f"measured: {self.figures()}")
        if self.example is not None:
            lines.append(f"smallest example: {self.example}")
        if self.reason:
            lines.append(f"seen: {self.reason}")
        if self.because_of:
            lines.append(f"may be a consequence of: {', '.join(self.because_of)}")
        return [*lines, f"likely cause: {self.cause}", f"remedy: {self.remedy}"]


def _short(number: float) -> str:
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "∞"
    return f"{number:,.0f}" if number == int(number) or 100 <= abs(number) < 1e9 else f"{number:.2g}"
