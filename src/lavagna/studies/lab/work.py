"""Where experiments compute: processes beside this one, each with one thread for its matrix products.

Experiments are many small trainings. A matrix product of a few hundred numbers gains nothing from a second thread; two
trainings side by side gain everything from a second process.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from queue import Empty
from types import TracebackType
from typing import Any, Self, TypeVar

from ..machine import usable_cpus
from .training import Trained, Training, train

__all__ = ["Tick", "Work"]

T = TypeVar("T")
R = TypeVar("R")

#: called with the share of a piece of work that is done
Tick = Callable[[float], None]

PATIENCE = 0.2  # seconds between looks at how far the pieces are

#: what the libraries that multiply matrices read when they are loaded
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


class Stopped(Exception):
    """The work was given up while this piece of it ran."""


class Work:
    """Runs pieces of work on all cores, and keeps what was trained.

    Args:
        processes: how many beside this one; None for one a core, 0 to compute here.
        report: told how many hundredths of pieces are done, and of how many.
    """

    def __init__(
        self, processes: int | None = None, report: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self.processes = usable_cpus() if processes is None else processes
        self.report = report
        self._pool: _Pool | None = None
        self._trained: dict[Training, Trained] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.close()

    def map(self, function: Callable[[T, Tick], R], items: Sequence[T]) -> list[R]:
        """function(item, tick) of each item, in their order; other processes find the function by its module."""
        if not self.processes:
            return [function(item, self._here(i, len(items))) for i, item in enumerate(items)]
        if self._pool is None:
            self._pool = _Pool(self.processes)
        return self._pool.map(function, items, self.report)

    def trained(self, trainings: Sequence[Training]) -> list[Trained]:
        """What comes of trainings; of those that were done before, what came of them."""
        new = [training for training in dict.fromkeys(trainings) if training not in self._trained]
        # The longest first: no core is left with a long one at the end.
        new.sort(key=lambda training: -training.work)
        self._trained |= zip(new, self.map(train, new), strict=True)
        return [self._trained[training] for training in trainings]

    def _here(self, i: int, total: int) -> Tick:
        return lambda share: self.report(round(100 * (i + share)), 100 * total)


class _Pool:
    """Processes that tell how far they are and leave their work when they are told to."""

    def __init__(self, processes: int) -> None:
        # Spawned, not forked: a library that is loaded has read its number of threads.
        context = get_context("spawn")
        self.shares: Any = context.Queue()
        self.stop: Any = context.Event()
        self.maps = 0
        self.executor = ProcessPoolExecutor(
            processes, mp_context=context, initializer=_begin, initargs=(self.shares, self.stop)
        )

    def map(self, function: Callable[[T, Tick], R], items: Sequence[T], report: Callable[[int, int], None]) -> list[R]:
        self.maps += 1
        done = [0.0] * len(items)
        report(0, 100 * len(items))
        try:
            with _one_thread():
                futures: list[Future[R]] = [
                    self.executor.submit(_piece, function, item, (self.maps, i)) for i, item in enumerate(items)
                ]
            pending: set[Future[R]] = set(futures)
            while pending:
                finished, pending = wait(pending, PATIENCE, FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                for i, share in self._reported():
                    done[i] = max(done[i], share)
                for i, future in enumerate(futures):
                    if future.done():
                        done[i] = 1.0
                report(round(100 * sum(done)), 100 * len(items))
        except BaseException:
            self.close()
            raise
        return [future.result() for future in futures]

    def _reported(self) -> Iterator[tuple[int, float]]:
        """What the pieces of this map have told; what those of an earlier one told too late is dropped."""
        while True:
            try:
                (number, i), share = self.shares.get_nowait()
            except Empty:
                return
            if number == self.maps:
                yield i, share

    def close(self) -> None:
        self.stop.set()
        self.executor.shutdown(cancel_futures=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Processes that are begun in here multiply matrices with one thread."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_shares: Any = None
_stop: Any = None


def _begin(shares: Any, stop: Any) -> None:
    global _shares, _stop
    _shares, _stop = shares, stop
    # Who is told to stop shall not wait until somebody reads how far it is.
    shares.cancel_join_thread()
    # Ctrl-C reaches every process of a terminal; the one that was called tells the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _piece(function: Callable[[T, Tick], R], item: T, place: tuple[int, int]) -> R:
    def tick(share: float) -> None:
        if _stop.is_set():
            raise Stopped
        _shares.put((place, share))

    return function(item, tick)
