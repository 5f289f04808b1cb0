"""Which subjects a test binds, and what tests of several contracts need."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from lavagna.ops.tree import leaves

from ..contracts import Subject

Test = TypeVar("Test", bound=Callable[..., None])


def everything(subject: Subject) -> bool:
    return True


def stateful(subject: Subject) -> bool:
    """Whether it has a state at all."""
    return bool(leaves(subject.module.init_state(1)))


def binds(
    contract: str | None = None,
    *,
    only: Callable[[Subject], bool] = everything,
    representatives: bool = False,
    subset: bool = False,
) -> Callable[[Test], Test]:
    """Choose the subjects of a test.

    Args:
        contract: those that it binds.
        only: those of whom this is true.
        representatives: only the representative ones among them, for code that all of a name share.
        subset: the representative ones among them belong to the marked subset.
    """

    def decorate(test: Test) -> Test:
        test.binds = (contract, only, representatives, subset)
        return test

    return decorate


def parametrize(
    metafunc: pytest.Metafunc, subjects: Sequence[Subject], representative: Callable[[Subject], bool]
) -> None:
    """Give a test of this module its subjects.

    Args:
        representative: whether a subject stands for others of its name.
    """
    if "subject" not in metafunc.fixturenames:
        return
    contract, only, representatives, subset = getattr(metafunc.function, "binds", (None, everything, False, False))
    metafunc.parametrize(
        "subject",
        [
            pytest.param(s, id=s.name, marks=[pytest.mark.subset] if subset and representative(s) else [])
            for s in subjects
            if contract not in s.excepted and only(s) and (representative(s) or not representatives)
        ],
    )


def nan(like: Tensor) -> Tensor:
    return torch.full_like(like, float("nan"))


def narrowed(subject: Subject, dtype: torch.dtype) -> nn.Module:
    """A copy of the module in another dtype."""
    return copy.deepcopy(subject.module).to(dtype)
