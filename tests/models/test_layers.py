"""Depth is data."""

from __future__ import annotations

import pytest

from lavagna.errors import ConfigError
from lavagna.models import expand_layers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mamba", ["mamba"]),
        ("2*mamba", ["mamba", "mamba"]),
        (" 2 * mamba + attention ", ["mamba", "mamba", "attention"]),
        ("2*(2*mamba+attention)", ["mamba", "mamba", "attention"] * 2),
        ("2*(a+3*(b+c))+d", [*["a", "b", "c", "b", "c", "b", "c"] * 2, "d"]),
        ("0*mamba+attention", ["attention"]),
        ("(mamba)", ["mamba"]),
    ],
)
def test_sums_are_expanded(text: str, expected: list[str]) -> None:
    assert expand_layers(text) == tuple(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mixer's name but got the end"),
        ("mamba+", "expected a mixer's name but got the end"),
        ("2*", "expected a mixer's name but got the end"),
        ("2 mamba", r"expected '\*' but got 'mamba'"),
        ("mamba*2", r"expected '\+' or the end but got '\*'"),
        ("(mamba", r"expected '\)' but got the end"),
        ("mamba)", r"expected '\+' or the end but got '\)'"),
        ("mamba-attention", "unexpected '-'"),
        ("-1*mamba", "unexpected '-'"),
        ("0*mamba", "at least one layer"),
    ],
)
def test_faults_are_pointed_at(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand_layers(text)
