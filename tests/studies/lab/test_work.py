"""Pieces of work in other processes: their order, threads, progress, faults; and trainings that are kept."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from lavagna.studies.lab import work as work_module
from lavagna.studies.lab.training import Trained, Training, train
from lavagna.studies.lab.work import THREADS, Tick, Work


def square(x: int, tick: Tick) -> int:
    tick(0.5)
    return x * x


def threads(item: None, tick: Tick) -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in THREADS}


def fail_or_wait(x: int, tick: Tick) -> int:
    if x == 0:
        raise ValueError("piece 0 fails")
    for _ in range(6000):  # a minute, unless it is told to stop
        time.sleep(0.01)
        tick(0.1)
    return x


@pytest.mark.parametrize("processes", [0, 2])
def test_results_come_in_order_and_progress_reaches_the_end(processes: int) -> None:
    told: list[tuple[int, int]] = []
    with Work(processes, lambda done, total: told.append((done, total))) as work:
        assert work.map(square, [3, 1, 2]) == [9, 1, 4]
        assert work.map(square, []) == []
    assert {total for _, total in told} <= {300, 0}
    done = [done for done, total in told if total]
    assert done == sorted(done)
    assert done[-1] == (300 if processes else 250)


def test_processes_multiply_matrices_with_one_thread() -> None:
    before = {name: os.environ.get(name) for name in THREADS}
    with Work(1) as work:
        assert work.map(threads, [None]) == [dict.fromkeys(THREADS, "1")]
    assert {name: os.environ.get(name) for name in THREADS} == before


def test_what_an_earlier_piece_told_too_late_is_no_progress_of_this_one() -> None:
    with Work(1) as work:
        work.map(square, [1, 2, 3])
        assert work._pool is not None
        work._pool.shares.put(((1, 2), 0.9))
        assert work.map(square, [4]) == [16]


def test_a_fault_in_one_piece_ends_the_others() -> None:
    begin = time.monotonic()
    with Work(2) as work, pytest.raises(ValueError, match="piece 0 fails"):
        work.map(fail_or_wait, [1, 0, 2, 3])
    assert time.monotonic() - begin < 50  # the others would have waited for a minute each


def test_what_was_trained_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[Training] = []

    def counted(training: Training, tick: Tick) -> Trained:
        trained.append(training)
        return train(training, tick)

    monkeypatch.setattr(work_module, "train", counted)
    short, long = Training("copy", 2, seed=0, steps=2), Training("copy", 3, seed=0, steps=2)
    with Work(0) as work:
        first = work.trained([short, long, short])
        second = work.trained([long])
    assert trained == [long, short]  # the longest first, each once
    assert first[0] is first[2]
    assert second[0] is first[1]
    assert len(first[0].losses) == 2


def test_another_process_trains_the_same() -> None:
    training = Training("sort", 2, seed=1, steps=5)
    with Work(1) as work:
        (there,) = work.trained([training])
    here = train(training, lambda share: None)
    np.testing.assert_array_equal(there.losses, here.losses)
    assert there.accuracy.per_token == here.accuracy.per_token
