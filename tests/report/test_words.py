"""Numbers and lists as people read them."""

from __future__ import annotations

import pytest

from lavagna.report.words import bits, count, joined, percent, plural, short, size


@pytest.mark.parametrize(
    ("value", "text"), [(2.34567, "2.346"), (0.01, "0.010"), (0.00123, "0.0012"), (0.0, "0.000"), (-0.5, "-0.500")]
)
def test_bits(value: float, text: str) -> None:
    assert bits(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (999, "999"),
        (999.6, "1 k"),
        (1234, "1.23 k"),
        (150_000, "150 k"),
        (1.2e6, "1.2 M"),
        (5e12, "5 T"),
    ],
)
def test_short(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(832, "832 B"), (57_344, "57.3 kB"), (1_610_612_736, "1.61 GB"), (99_960_000, "100 MB")]
)
def test_size(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(("share", "text"), [(0.1, "10 %"), (0.217, "21.7 %"), (0.0312, "3.1 %"), (0.01, "1 %")])
def test_percent(share: float, text: str) -> None:
    assert percent(share) == text


def test_lists_and_counts() -> None:
    assert [joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [plural(1, "it", "they"), plural(2, "it", "they"), plural(0, "it", "they")] == ["it", "they", "they"]
    assert count(1234567.4) == "1,234,567"
