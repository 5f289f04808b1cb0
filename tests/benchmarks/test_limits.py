"""Every limit of the machine is the rate of work that is really done, with one thread and with two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.limits import LIMITS, MB, huge, read, update
from benchmarks.measure import measured
from lavagna import native

EXPONENTIALS = 4096 * 1000

#: limit -> work of one call with one thread and with two; None: see the test of multiply-adds
WORK: dict[str, tuple[int, int] | None] = {
    "multiply-adds in registers, float32": None,
    "torch product 1024³, float32": (2 << 30, 2 << 30),
    "torch product 1024³, bfloat16": (2 << 30, 2 << 30),
    "exponentials, float32": (EXPONENTIALS, 2 * EXPONENTIALS),
    "read 512 KB": (MB // 2, MB // 2),
    "read and write 512 KB in place": (MB, MB),
}

each_memory = pytest.mark.parametrize("allocate", [torch.zeros, huge])


def test_a_limit_is_work_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of calls that are told to take half a second each."""
    monkeypatch.setattr("benchmarks.measure._seconds", lambda run: (run(), 0.5)[1])
    small = {name: limit[2] for name, limit in LIMITS.items() if "256" not in name}
    assert small.keys() == WORK.keys()
    for name, make in small.items():
        one, two = (measured(make, threads, 2) for threads in (1, 2))
        expected = WORK[name] or (one[0] / 2, one[0])
        assert (one, two) == tuple([2.0 * work] * 2 for work in expected), name


@pytest.mark.parametrize("threads", [1, 2])
def test_multiply_adds_are_made(threads: int) -> None:
    """Every number goes to 1, where x = x/2 + 1/2 stays, and a task adds up all of its numbers."""
    data, sums = torch.full((16,), 0.5), torch.zeros(threads)
    made = native.module().limits_multiply_add(threads, data.data_ptr(), 100, sums.data_ptr())
    assert made > 0
    assert sums.tolist() == threads * [made / (threads * 100)]


@each_memory
def test_memory_is_read(allocate: Callable[[int], Tensor]) -> None:
    assert read(1 << 16, allocate)().work == 1 << 16
    piece = native.module().limits_piece
    data, sums = allocate(3 * piece).fill_(1), torch.zeros(3)
    native.module().limits_read(2, data.data_ptr(), data.numel(), sums.data_ptr())
    assert sums.tolist() == 3 * [piece]


@each_memory
def test_memory_is_changed_piece_by_piece(allocate: Callable[[int], Tensor]) -> None:
    memory = allocate(1 << 16)
    side = update(1 << 16, 1 << 18, lambda count: memory[:count])()
    assert side.work == 2 << 16
    for piece in memory.split(1 << 14):
        assert bool((piece == 1).all())
        side.run()
        assert bool((piece < 1).all())


def test_huge_pages_hold_zeros() -> None:
    memory = huge(3, 5)
    assert memory.shape == (3, 5)
    assert not memory.any()
    assert memory.data_ptr() % (1 << 21) == 0
