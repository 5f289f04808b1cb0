"""Figures as PNG files, in the style of the reports, on white."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...files import atomic_file
from ...report.figures import COLOURS, DASHES, FAINT, MARKERS, STYLE
from .experiment import Drawing, Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FAINT", "colour", "draw", "heat", "legend_above", "line"]

WIDTH, DPI = 8.0, 110
COLOURS_OF_A_FILE = 128
ON_PAPER: dict[Any, Any] = {"figure.facecolor": "white", "axes.facecolor": "white", "image.cmap": "Blues"}


def draw(drawing: Drawing, values: Values, path: Path) -> None:
    """Write a figure, whole or not at all."""
    import matplotlib
    from matplotlib.figure import Figure
    from PIL import Image

    with matplotlib.rc_context({**STYLE, **ON_PAPER}):
        figure = Figure(figsize=(WIDTH, drawing.height), dpi=DPI, layout="constrained")
        axes = figure.subplots(1, len(drawing.panels), width_ratios=drawing.panels, squeeze=False)[0]
        drawing.draw(values, list(axes))
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", metadata={"Software": None})
    # A palette: a third of the bytes, and lines on white do not need more.
    image = Image.open(drawn).convert("RGB").quantize(COLOURS_OF_A_FILE)
    with atomic_file(path) as temporary:
        image.save(temporary, format="png", optimize=True)


def colour(i: int) -> str:
    """The i-th of the colours that all eyes tell apart."""
    return COLOURS[i % len(COLOURS)]


def line(i: int, *, marker: bool = False) -> dict[str, Any]:
    """Colour, dashes and, if asked for, marker of the i-th line."""
    style = {"color": colour(i), "linestyle": DASHES[i % len(DASHES)]}
    return {**style, "marker": MARKERS[i % len(MARKERS)]} if marker else style


def heat(axes: Axes, matrix: Sequence[Sequence[float]], *, most: float | None = 1.0) -> None:
    """A matrix as squares, white for 0."""
    axes.imshow(matrix, vmin=0, vmax=most, interpolation="nearest")
    axes.grid(visible=False)


def legend_above(axes: Axes) -> None:
    """The legend of one panel above all of them, where it covers nothing."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=9)
