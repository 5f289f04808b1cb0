"""The views as a picture, and as characters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...files import atomic_file
from ...mixers.registry import mixer_class
from ...report.figures import COLOURS, FAINT, INK, STYLE
from .views import View

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

__all__ = ["draw", "shade", "told"]

SHADES = (" ", "░", "▒", "▓", "█")  # of 0, then up to a quarter, ... up to 1 and beyond
NEGATIVE = "-"
NOTHING = 0.02  # a number below is drawn as 0
SIDE = 8  # rows and columns that characters show
LONGEST = 10  # characters of a token above its matrix
DPI = 100
ON_PAPER: dict[Any, Any] = {"figure.facecolor": "white", "axes.facecolor": "white", "axes.grid": False}


def told(view: View, t: int) -> str:
    """What token t's transition does at least and at most: its eigenvalues (sizes, if complex); or the tokens kept."""
    if view.cache:
        kept = view.cache[t].shape[1]
        return f"{kept} kept"
    values = torch.linalg.eigvals(view.matrices[t])
    turned = values.imag.abs().max() > 1e-6
    sizes = values.abs() if turned else values.real
    low, high = float(sizes.min()), float(sizes.max())
    return f"{low:.3f}" if high - low < 0.0005 else f"{low:.3f} … {high:.3f}"


def shade(matrix: Tensor) -> list[str]:
    """A matrix (its real part) as lines of characters, two a number, of at most SIDE rows and columns."""
    return ["".join(2 * _character(float(x)) for x in row[:SIDE]) for row in matrix.real[:SIDE]]


def _character(x: float) -> str:
    if abs(x) < NOTHING:
        return SHADES[0]
    return NEGATIVE if x < 0 else SHADES[min(1 + int(4 * x), len(SHADES) - 1)]


def draw(views: Sequence[View], tokens: Sequence[str], source: str, path: Path) -> None:
    """Write the picture (PNG), whole or not at all.

    Args:
        views: what is shown, two a row.
        tokens: the texts of the tokens.
        source: whose keys and gates they are, in words.
        path: of the file.
    """
    import matplotlib
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    colours = LinearSegmentedColormap.from_list("zoo", [COLOURS[1], "white", COLOURS[0]])
    width, height = 11.2, 0.9 + 1.32 * -(-len(views) // 2)
    with matplotlib.rc_context({**STYLE, **ON_PAPER}):
        figure = Figure(figsize=(width, height), dpi=DPI)
        figure.text(0.1 / width, 1 - 0.08 / height, _title(source), va="top", fontsize=9, linespacing=1.4)
        tile, gap = 5.3 / max(len(tokens), 5), 0.08
        side = min(tile - gap, 0.78)
        for i, view in enumerate(views):
            left = 0.12 + 5.6 * (i % 2)
            top = height - 0.87 - 1.32 * (i // 2)
            _heading(figure, view, left / width, top / height)
            for t, matrix in enumerate(view.drawn):
                at = ((left + t * tile) / width, (top - 0.36 - side) / height, side / width, side / height)
                axes = figure.add_axes(at)
                _tile(axes, _padded(view, matrix), colours)
                axes.set_title(_short(tokens[t]), fontsize=8, color=FAINT, pad=2, loc="center", parse_math=False)
                axes.set_xlabel(told(view, t), fontsize=5.5, color=INK, labelpad=2)
        with atomic_file(path) as temporary:
            figure.savefig(temporary, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})


def _title(source: str) -> str:
    return (
        "What carries the memory $S_{t-1}$ to $S_t$ at each token: blue 1, white 0, orange −1; beneath, the "
        "eigenvalues\n(of complex ones, as S4D has, the real part and the sizes). Attention carries nothing on: the "
        f"keys that it keeps.\nHead (or channel) 1; {source.replace('$', chr(92) + '$')}."
    )


def _short(token: str) -> str:
    return token if len(token) <= LONGEST else f"{token[: LONGEST - 1]}…"


def _heading(figure: Figure, view: View, x: float, y: float) -> None:
    cls = mixer_class(view.mixer)
    figure.text(x, y, view.mixer, va="top", fontsize=9, fontweight="bold")
    figure.text(x + 1.3 / figure.get_figwidth(), y, cls.recurrence, va="top", fontsize=8.5)


def _tile(axes: Axes, matrix: Tensor, colours: Colormap) -> None:
    axes.imshow(matrix.real.numpy(), cmap=colours, vmin=-1, vmax=1, interpolation="nearest", aspect="auto")
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set(visible=True, linewidth=0.5)


def _padded(view: View, matrix: Tensor) -> Tensor:
    """A cache in the width that it will have grown to."""
    if not view.cache:
        return matrix
    return torch.nn.functional.pad(matrix, (0, len(view.cache) - matrix.shape[1]))
