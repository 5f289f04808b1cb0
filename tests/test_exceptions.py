"""The table of exceptions: it is what the documentation shows, and each line of it is an exception still."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lavagna.errors import InputError

from .exceptions import CONTRACTS, EXCEPTIONS, Exemption, exempt, table
from .support.conformance import state_sizes, stateful
from .support.contracts import ROWS, Subject, agree, in_pieces, random, values
from .support.subjects import MIXER_SUBJECTS, MODEL_SUBJECTS

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "exceptions.md"


def breaks(subject: Subject, contract: str) -> None:
    """Do what the contract promises, and fail."""
    x, other = random(ROWS, 70, subject.width), random(ROWS, 70, subject.width, seed="other")
    if contract == "cut anywhere":
        agree(values(*in_pieces(subject, x, None, (33,))), values(*subject(x)))
    elif contract == "the past cannot see the future":
        changed = torch.cat([x[:, :33], other[:, 33:]], 1)
        agree({"outputs before": subject(changed)[0][:, :33]}, {"outputs before": subject(x)[0][:, :33]})
    elif contract == "constant memory":
        assert len(set(state_sizes(subject, (50, 100, 200)))) == 1
    else:
        raise NotImplementedError(f"say here how an exception to {contract!r} shows")


EXCEPTED = [
    pytest.param(subject, contract, id=f"{subject.name}-{contract}")
    for subject in (*MIXER_SUBJECTS, *MODEL_SUBJECTS)
    for contract in sorted(subject.excepted)
]


@pytest.mark.parametrize(("subject", "contract"), EXCEPTED)
def test_each_exception_is_one(subject: Subject, contract: str) -> None:
    with pytest.raises((AssertionError, InputError)):
        breaks(subject, contract)


@pytest.mark.parametrize("contract", sorted({contract for s in MIXER_SUBJECTS for contract in s.excepted}))
def test_what_is_not_excepted_does_not_break(contract: str) -> None:
    bound = next(s for s in MIXER_SUBJECTS if stateful(s) and contract not in s.excepted)
    breaks(bound, contract)


@pytest.mark.parametrize("exception", EXCEPTIONS, ids=lambda e: f"{e.name}-{e.contract}")
def test_each_line_names_a_contract_and_meets_a_mixer_under_test(exception: Exemption) -> None:
    assert exception.contract in CONTRACTS
    assert exception.reason
    assert any(s.name.split("-")[0] == exception.name and exception.contract in s.excepted for s in MIXER_SUBJECTS)


def test_an_exception_holds_for_its_options_alone() -> None:
    assert exempt("attention", "constant memory", causal=True, window=None, heads=4)
    assert not exempt("attention", "constant memory", causal=True, window=5)
    assert not exempt("attention", "constant memory")
    assert not exempt("attention", "finite", causal=True, window=None)
    assert not exempt("mamba", "constant memory", causal=True, window=None)


def test_the_documentation_shows_the_table() -> None:
    assert table() in DOCUMENT.read_text()
