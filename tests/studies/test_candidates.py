"""Lists of candidates: patterns, names, folders."""

from __future__ import annotations

import pytest

from lavagna.errors import ConfigError
from lavagna.studies.candidates import parse_candidates


def test_patterns_are_expanded_and_named() -> None:
    found = parse_candidates(" attention , 3*gated_deltanet + attention,2*(mamba+attention)")
    assert [c.name for c in found] == ["attention", "3*gated_deltanet+attention", "2*(mamba+attention)"]
    assert found[1].pattern == ("gated_deltanet",) * 3 + ("attention",)
    assert found[2].pattern == ("mamba", "attention") * 2


def test_repeated_ones_are_counted() -> None:
    found = parse_candidates("attention,mamba,attention,attention")
    assert [c.name for c in found] == ["attention", "mamba", "attention (2)", "attention (3)"]


def test_folders_differ_and_need_no_quoting() -> None:
    found = parse_candidates("2*(mamba+attention),2*mamba+attention,2*(mamba+attention),attention,attention")
    folders = [c.folder for c in found]
    assert len(set(folders)) == len(folders)
    assert all(set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789_+-") for folder in folders)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "between commas"),
        ("attention,,mamba", "between commas"),
        ("attention,3*", "the end"),
        ("attention;mamba", "unexpected ';'"),
    ],
)
def test_what_is_no_list_of_patterns_is_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_candidates(text)
