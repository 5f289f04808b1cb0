"""Ctrl-C and SIGTERM ask for a stop after the step; a second one stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interruption", "interruptible"]


class Interruption:
    """Whether, and by which signal, a stop was asked for."""

    signal: int | None = None


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Turn the first SIGINT or SIGTERM into a request; the handlers before are put back at the end.

    Outside of the main thread signals cannot be caught: the request then never comes.
    """
    asked = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        asked.signal = number
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

    for number in before:
        signal.signal(number, handle)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
