"""What the registry tells of each mixer."""

from __future__ import annotations

from typing import NamedTuple

from ...mixers.registry import MIXERS, mixer_class

__all__ = ["Line", "lines"]


class Line(NamedTuple):
    """One mixer: its name, what follows "S_t =", what its memory survives through, its module."""

    mixer: str
    recurrence: str
    survives: str
    module: str


def lines() -> list[Line]:
    """One line for each registered mixer, in the registry's order."""
    classes = {name: mixer_class(name) for name in MIXERS}
    return [Line(name, cls.recurrence, cls.survives, cls.__module__) for name, cls in classes.items()]
