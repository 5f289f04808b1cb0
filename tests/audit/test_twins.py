"""Every planted bug is named first, others only as its declared consequences; the sound models pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import nn

from lavagna.audit import TRAPS, Report, audit

from .twins import LONG, SOUND, TWINS, Twin

#: enough for every check, short of the thousands of tokens that some would like
TOKENS = 140


@cache
def audited(make: Callable[[], nn.Module], tokens: int = TOKENS) -> Report:
    torch.manual_seed(0)
    return audit(make(), max_tokens=tokens)


@pytest.mark.parametrize("make", SOUND, ids=lambda make: make.__name__)
def test_a_sound_model_passes(make: Callable[[], nn.Module]) -> None:
    report = audited(make)
    assert report.passed, str(report)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_planted_bug_is_named_first(twin: Twin) -> None:
    report = audited(twin.make)
    first, *others = report.failures
    assert first.trap == twin.trap, str(report)
    for other in others:
        assert twin.trap in other.because_of, str(report)
    assert first.measured is not None
    assert first.tolerance is not None
    assert not first.measured <= first.tolerance
    assert first.example is not None
    assert first.cause
    assert first.remedy


@pytest.mark.parametrize("twin", LONG, ids=lambda twin: twin.name)
def test_a_bug_behind_the_longest_usual_chunk_is_found(twin: Twin) -> None:
    report = audited(twin.make, 270)
    assert report.failures[0].trap == twin.trap, str(report)
    assert all(twin.trap in other.because_of for other in report.failures[1:]), str(report)


def test_every_trap_has_a_twin() -> None:
    assert {twin.trap for twin in TWINS} == {trap.name for trap in TRAPS}


@pytest.mark.parametrize(
    ("name", "tokens", "batch"),
    [
        ("NoMask", 2, 1),
        ("MaskOffByOne", 2, 1),
        ("ChunkReadBeforeItsEnd", 17, 1),
        ("MeanOverBatch", 1, 2),
        ("MaskIgnored", 2, 1),
        ("StateOfPadding", 2, 1),
        ("SeveralStartFromZero", 3, 1),
        ("RowsFolded", 2, 2),
        ("FullBlocksOnly", 17, 1),
    ],
)
def test_the_example_is_the_smallest(name: str, tokens: int, batch: int) -> None:
    twin = next(twin for twin in TWINS if twin.name == name)
    example = audited(twin.make).failures[0].example
    assert example is not None
    assert (example.tokens, example.batch) == (tokens, batch)


def test_a_bug_that_only_the_backward_pass_has_is_said_to_be_one() -> None:
    twin = next(twin for twin in TWINS if twin.name == "GradientLooksAhead")
    assert audited(twin.make).failures[0].cause == "the backward pass alone looks ahead"
