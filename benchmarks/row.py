"""A row of the table: what is measured, against what, what must be reached, and what was found."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

__all__ = ["Found", "Row", "Target", "at_least", "at_most", "between", "record", "run_row", "shown", "spread"]


class Target(NamedTuple):
    """What a figure must reach.

    Fields:
        low, high: the figure must lie between them; None for no bound on that side.
        unit: "×", "%" (the figure is a share of 1), "µs", "tokens" or "".
    """

    low: float | None
    high: float | None
    unit: str = ""

    @property
    def open(self) -> bool:
        """Whether any figure will do."""
        return self.low is None and self.high is None

    def met(self, figure: float) -> bool:
        return (self.low is None or figure >= self.low) and (self.high is None or figure <= self.high)

    def write(self, figure: float) -> str:
        """A figure in the target's unit."""
        if self.unit == "%":
            return f"{100 * figure:.0f} %"
        digits = 0 if abs(figure) >= 100 or float(figure).is_integer() else 1 if abs(figure) >= 10 else 2
        return f"{figure:.{digits}f} {self.unit}".strip()

    def __str__(self) -> str:
        if self.open:
            return "–"
        if self.low is None:
            assert self.high is not None
            return f"≤ {self.write(self.high)}"
        if self.high is None:
            return f"≥ {self.write(self.low)}"
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return f"{middle:.2f} ± {half:.2f}"


def at_least(figure: float, unit: str = "×") -> Target:
    return Target(figure, None, unit)


def at_most(figure: float, unit: str) -> Target:
    return Target(None, figure, unit)


def between(low: float, high: float) -> Target:
    return Target(low, high)


def shown(unit: str) -> Target:
    """No bound: the figure is shown beside the others."""
    return Target(None, None, unit)


class Row(NamedTuple):
    """One line of the table.

    Fields:
        name: how it is asked for on the command line.
        work: what is measured.
        against: what it is compared with.
        target: what must be reached.
        measure: gives one figure for each round.
    """

    name: str
    work: str
    against: str
    target: Target
    measure: Callable[[], Sequence[float]]


class Found(NamedTuple):
    """What came of a row: its figures, or why there are none."""

    figures: dict[str, float] | None
    error: str | None
    seconds: float


def run_row(row: Row) -> Found:
    """Measure a row. An error of any kind becomes part of the result, so that no row is missing from a table."""
    begin = time.perf_counter()
    try:
        figures, error = spread(row.measure()), None
    except Exception as problem:  # noqa: BLE001 - every reason why a row has no figure belongs into the table
        figures, error = None, f"{type(problem).__name__}: {' '.join(str(problem).split())}"
    return Found(figures, error, time.perf_counter() - begin)


def spread(figures: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and number of rounds."""
    values = list(figures)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values
    return {"median": median, "low": low, "high": high, "rounds": len(values)}


def record(row: Row, found: Found) -> dict[str, Any]:
    """A row and what was found as plain values, for a file of results."""
    met = found.figures is not None and row.target.met(found.figures["median"])
    return {
        "name": row.name,
        "work": row.work,
        "against": row.against,
        "target": row.target._asdict(),
        "figures": found.figures,
        "met": met,
        "error": found.error,
        "seconds": round(found.seconds, 2),
    }
