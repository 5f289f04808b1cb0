"""The number of threads decides the order of some sums, and nothing else does."""

from __future__ import annotations

import pytest
import torch

from lavagna.ops.spec import Case, OpSpec

from ..support.budget import close_all
from ..support.operators import answer, double, draw, few, resized
from .support import NATIVE, SHARED, native_row


def shared(spec: OpSpec, case: Case) -> Case:
    """The case with several tasks for the threads to share."""
    return resized(case, **{letter: size for letter, size in SHARED.items() if letter in case.sizes})


EACH = pytest.mark.parametrize(
    ("spec", "case"),
    [pytest.param(spec, case, id=f"{spec.op}-{case.name}") for spec in NATIVE for case in few(spec)],
)


@EACH
def test_the_same_bits_twice(spec: OpSpec, case: Case) -> None:
    for threads in (1, 2):
        torch.set_num_threads(threads)
        first, second = (answer(spec, native_row(spec), draw(spec, shared(spec, case))) for _ in range(2))
        for name, tensor in first.items():
            assert torch.equal(tensor, second[name]), f"{name} with {threads} threads"


@EACH
def test_two_threads_give_what_one_gives(spec: OpSpec, case: Case) -> None:
    inputs = double(draw(spec, shared(spec, case)))
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.append(answer(spec, native_row(spec), inputs))
    close_all(found[1], found[0], 1e-12)


@EACH
def test_more_threads_than_tasks(spec: OpSpec, case: Case) -> None:
    inputs = double(draw(spec, resized(case, B=1, T=3)))
    expected = answer(spec, native_row(spec), inputs)
    torch.set_num_threads(7)
    close_all(answer(spec, native_row(spec), inputs), expected, 1e-12)
