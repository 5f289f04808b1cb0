"""What each experiment must reproduce, and what it did not.

``expected/NAME.toml`` names figures by their way through an experiment's values ("gap.causal") and says of each

- in [printed]: its digits; the value, rounded to as many, must be this,
- in [equal]: the value itself,
- in [bounds]: least, most, or both, and the reason why it is no single number.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import ConfigError

__all__ = ["Check", "check", "expected"]

FOLDER = Path(__file__).with_name("expected")
KINDS = ("printed", "equal", "bounds")
BOUNDS = frozenset({"least", "most", "reason"})


class Check(NamedTuple):
    """One figure: its way through the values, what was expected, what came, whether that is the same."""

    figure: str
    expected: str
    got: str
    met: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.figure}: expected {self.expected}, got {self.got}"


def expected(name: str) -> dict[str, dict[str, Any]]:
    """The expectations of an experiment, checked for mistakes of their own.

    Raises:
        ConfigError: the file says something that has no meaning.
    """
    found = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    for kind in found:
        if kind not in KINDS:
            raise ConfigError(f"{name}.toml: expected the tables {', '.join(KINDS)}, got {kind}")
    for figure, bound in found.get("bounds", {}).items():
        if not (bound.keys() <= BOUNDS and bound.keys() & {"least", "most"} and bound.get("reason")):
            raise ConfigError(f"{name}.toml: {figure}: expected least, most or both, and a reason, got {bound}")
    return found


def check(values: Mapping[str, Any], expectations: Mapping[str, Mapping[str, Any]]) -> list[Check]:
    """Compare every expectation with the values; a figure that is missing is not met."""
    return list(_checks(values, expectations))


def _checks(values: Mapping[str, Any], expectations: Mapping[str, Mapping[str, Any]]) -> Iterator[Check]:
    for figure, digits in expectations.get("printed", {}).items():
        value = _find(values, figure)
        got = None if value is None else _printed(value, digits)
        yield Check(figure, _words(digits), _words(got), got == digits)
    for figure, wanted in expectations.get("equal", {}).items():
        value = _find(values, figure)
        yield Check(figure, _words(wanted), _words(value), value == wanted and type(value) is type(wanted))
    for figure, bound in expectations.get("bounds", {}).items():
        value = _find(values, figure)
        low, high = bound.get("least", -math.inf), bound.get("most", math.inf)
        wanted = " and ".join(f"at {side} {bound[side]}" for side in ("least", "most") if side in bound)
        met = isinstance(value, int | float) and low <= value <= high
        yield Check(figure, wanted, _words(value), met, bound["reason"])


def _find(values: Any, figure: str) -> Any:
    for name in figure.split("."):
        if not isinstance(values, Mapping) or name not in values:
            return None
        values = values[name]
    return values


def _printed(value: Any, digits: str | list[str]) -> Any:
    """The value as it would stand beside these digits."""
    if isinstance(digits, list):
        if not isinstance(value, list) or len(value) != len(digits):
            return value
        return [_printed(*pair) for pair in zip(value, digits, strict=True)]
    decimals = len(digits.partition(".")[2])
    return f"{value:.{decimals}f}" if isinstance(value, int | float) else value


def _words(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"[{', '.join(map(_words, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
