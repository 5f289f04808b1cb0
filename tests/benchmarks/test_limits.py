"""Every limit of the machine can be measured, with one thread and with two."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.limits import LIMITS, huge, read, update
from benchmarks.measure import Make, measured


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("make", [limit[2] for name, limit in LIMITS.items() if "256" not in name])
def test_a_limit_is_a_rate(make: Make, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.BURST", 0.0)
    assert all(rate > 0 for rate in measured(make, threads, 2))


@pytest.mark.parametrize("allocate", [torch.zeros, huge])
def test_memory_is_read_and_changed(allocate: Callable[[int], torch.Tensor]) -> None:
    assert read(1 << 16, allocate)().work == 1 << 16
    side = update(1 << 16, 1 << 18, allocate)()
    assert side.work == 2 << 16
    side.run()


def test_huge_pages_hold_zeros() -> None:
    memory = huge(3, 5)
    assert memory.shape == (3, 5)
    assert not memory.any()
    assert memory.data_ptr() % (1 << 21) == 0
