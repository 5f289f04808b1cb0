"""What an experiment is made of: figures that are measured, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Drawing", "Experiment", "Table", "Values"]

#: plain data, as JSON has it
Values = dict[str, Any]


class Table(NamedTuple):
    """Rows of words; the first column says what a row is about."""

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


class Drawing(NamedTuple):
    """A figure: what can be seen on it, how it is drawn into its panels, and how large.

    Fields:
        words: for those who do not see it.
        draw: fills the panels.
        panels: beside one another; a list of widths in proportion.
        height: inches; the width is always the same.
    """

    words: str
    draw: Callable[[Values, list[Axes]], None]
    panels: Sequence[float] = (1,)
    height: float = 3.2


class Experiment(NamedTuple):
    """What is measured, and its tables and figures by name, as the page asks for them."""

    measure: Callable[[Work], Values]
    tables: Callable[[Values], dict[str, Table]]
    figures: Mapping[str, Drawing] = {}
