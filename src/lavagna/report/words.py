"""Numbers and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["bits", "count", "joined", "percent", "plural", "short", "size"]


def bits(value: float) -> str:
    """Bits per byte: three decimals, or two digits of what is smaller."""
    return f"{value:.3f}" if abs(value) >= 0.0095 or value == 0 else f"{value:.2g}"


def count(value: float) -> str:
    """A whole number with commas."""
    return f"{value:,.0f}"


def percent(share: float) -> str:
    """0.0312 as 3.1 %."""
    return f"{100 * share:.3g} %" if share >= 0.1 else f"{100 * share:.2g} %"


def short(value: float) -> str:
    """A number to three digits with k, M or G: 1.2 M."""
    return _scaled(value, 1000, ("", " k", " M", " G", " T"))


def size(value: float) -> str:
    """Bytes: 832 B, 57.3 kB, 1.2 MB."""
    return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB"))


def _scaled(value: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while value >= 999.5 and power + 1 < len(units):
        value, power = value / step, power + 1
    digits = 0 if value == int(value) or value >= 100 else 1 if value >= 10 else 2
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + units[power]


def joined(names: Sequence[str]) -> str:
    """a; a and b; a, b and c."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def plural(number: int, one: str, many: str) -> str:
    """`one` for 1, else `many`."""
    return one if number == 1 else many
