"""Steps that write the next state over the one they are given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

__all__ = ["overwrites", "overwriting"]


class _Thread(local):
    allowed = False


_thread = _Thread()


@contextmanager
def overwriting() -> Iterator[None]:
    """Inside, in this thread, an operator that reads one token may overwrite the state it is given.

    For who holds the only copy: what an operator returns as its state is then perhaps the tensor it was given.
    """
    before = overwrites()
    _thread.allowed = True
    try:
        yield
    finally:
        _thread.allowed = before


def overwrites() -> bool:
    """Whether the state of a call may be overwritten."""
    return _thread.allowed
