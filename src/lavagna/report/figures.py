"""Figures as SVG text to stand inside a page: no file, no script, no address, colours that all eyes tell apart."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .words import count, short, size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["beyond", "curves", "differences", "reading", "trade_offs"]

Candidate = Mapping[str, Any]
Results = Mapping[str, Any]

#: Okabe & Ito 2008; with a marker and a dash for each, so that a print without colours can be read as well
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "osD^vPX*"
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (3, 1, 1, 1)), (0, (1, 1)))
INK, FAINT = "#333333", "#8a8a8a"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#b5b5b5",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "legend.frameon": False,
    "legend.handlelength": 2.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "path",
}


def curves(results: Results) -> str:
    """Training loss against tokens read."""
    with _drawing(1) as (figure, (axes,)):
        for i, candidate in enumerate(results["candidates"]):
            curve = candidate["curve"]
            axes.plot(curve["tokens"], curve["bits"], label=candidate["name"], **_line(i))
        later = [b for c in results["candidates"] for b in c["curve"]["bits"][len(c["curve"]["bits"]) // 10 :]]
        margin = 0.05 * (max(later) - min(later)) or 0.1
        axes.set_ylim(min(later) - margin, max(later) + margin)
        axes.set(xlabel="tokens read", ylabel="bits per token, training")
        axes.xaxis.set_major_formatter(_formatted(short))
        _legend(figure, axes)
        return _svg(figure, "Training loss of each candidate against the tokens read")


def beyond(results: Results) -> str:
    """Quality by position, with 95 % intervals; the trained length is marked."""
    context = results["settings"]["context"]
    with _drawing(1) as (figure, (axes,)):
        for i, candidate in enumerate(results["candidates"]):
            known = [at for at in candidate["by_position"] if at["low"] is not None]
            # A bin stands at its geometric middle, the first one, which begins at 0, at half its end.
            middle = [(at["from"] * at["to"]) ** 0.5 if at["from"] else at["to"] / 2 for at in known]
            axes.plot(middle, [at["value"] for at in known], label=candidate["name"], **_line(i), marker=_marker(i))
            axes.fill_between(
                middle,
                [at["low"] for at in known],
                [at["high"] for at in known],
                color=_colour(i),
                alpha=0.12,
                linewidth=0,
            )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(_formatted(count))
        axes.minorticks_off()
        axes.axvline(context, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
        axes.annotate(
            "trained length",
            (context, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-4, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            color=FAINT,
        )
        axes.set(xlabel="position in the window, tokens", ylabel="bits per byte, held out")
        _legend(figure, axes)
        return _svg(figure, "Bits per byte of held-out text by position in the window")


def reading(results: Results) -> str:
    """Speed of generation and bytes of state against tokens read."""
    with _drawing(2) as (figure, (left, right)):
        for i, candidate in enumerate(results["candidates"]):
            speeds = candidate["speed"]["generation"]
            left.errorbar(
                [at["context"] for at in speeds],
                [at["median"] for at in speeds],
                yerr=_bars(speeds),
                label=candidate["name"],
                marker=_marker(i),
                elinewidth=1,
                capsize=2,
                **_line(i),
            )
            memory = candidate["memory"]
            right.plot([at["context"] for at in memory], [at["bytes"] for at in memory], marker=_marker(i), **_line(i))
        contexts = [at["context"] for at in results["candidates"][0]["memory"]]
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(contexts)
            axes.xaxis.set_major_formatter(_formatted(count))
            axes.minorticks_off()
            axes.set_xlabel("tokens read before")
        left.set_ylim(0, 1.08 * left.get_ylim()[1])
        left.yaxis.set_major_formatter(_formatted(short))
        left.set(title="generation, tokens/s")
        right.set_yscale("log")
        right.yaxis.set_major_formatter(_formatted(size))
        right.set(title="state")
        _legend(figure, left)
        return _svg(figure, "Speed of generation, and size of the state, against the tokens read before")


def trade_offs(results: Results) -> str:
    """Quality against what it costs: training speed, generation speed, state."""
    longest = results["candidates"][0]["memory"][-1]["context"]
    with _drawing(3) as (figure, axes):
        for i, candidate in enumerate(results["candidates"]):
            quality = candidate["bits_per_byte"]
            speeds = [candidate["speed"]["training"], candidate["speed"]["generation"][-1]]
            state = candidate["memory"][-1]["bytes"]
            for panel, at in zip(axes, [*speeds, {"median": state, "low": state, "high": state}], strict=True):
                panel.errorbar(
                    [at["median"]],
                    [quality["value"]],
                    xerr=_bars([at]),
                    yerr=None if quality["low"] is None else _bars([{**quality, "median": quality["value"]}]),
                    label=candidate["name"],
                    marker=_marker(i),
                    markersize=7,
                    color=_colour(i),
                    linestyle="none",
                    elinewidth=1,
                )
        titles = ("training, tokens/s", f"generation after {count(longest)}, tokens/s", f"state after {count(longest)}")
        for panel in axes[:2]:
            panel.set_xlim(0, 1.08 * panel.get_xlim()[1])
        axes[2].set_xscale("log")
        _few_ticks(axes[2])
        for panel, title, formatter in zip(axes, titles, (short, short, size), strict=True):
            panel.set_xlabel(title)
            panel.xaxis.set_major_formatter(_formatted(formatter))
        axes[0].set_ylabel("bits per byte, held out")
        axes[0].invert_yaxis()  # better is up
        _legend(figure, axes[0])
        return _svg(figure, "Bits per byte against speed of training, speed of generation and size of the state")


def differences(results: Results) -> str:
    """How many more bits per byte each candidate needs than the best one, with 95 % intervals."""
    candidates = sorted(results["candidates"], key=lambda c: c["bits_per_byte"]["value"])
    best = candidates[0]["name"]
    rows = []
    for candidate in candidates[1:]:
        for found in results["differences"]:
            if {found["a"], found["b"]} == {candidate["name"], best} and found["low"] is not None:
                sign = 1 if found["a"] == candidate["name"] else -1
                ends = sorted([sign * found["low"], sign * found["high"]])
                rows.append((candidate["name"], sign * found["value"], *ends, found["sure"]))
    if not rows:
        return ""
    names = [candidate["name"] for candidate in results["candidates"]]
    with _drawing(1, height=0.75 + 0.32 * len(rows)) as (figure, (axes,)):
        for place, (name, value, low, high, sure) in enumerate(rows):
            i = names.index(name)
            axes.errorbar(
                [value],
                [place],
                xerr=[[value - low], [high - value]],
                marker=_marker(i),
                markersize=7,
                color=_colour(i),
                markerfacecolor=_colour(i) if sure else "white",
                elinewidth=1.6,
                capsize=3,
            )
        axes.axvline(0, color=INK, linewidth=1)
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"bits per byte more than {best} (hollow: cannot tell)")
        return _svg(figure, f"Bits per byte that each candidate needs more than {best}, with 95 % intervals")


# --- shared -------------------------------------------------------------------------------------------------


@contextmanager
def _drawing(panels: int, *, height: float = 3.3) -> Iterator[tuple[Figure, Sequence[Axes]]]:
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.4, height), layout=ConstrainedLayoutEngine(w_pad=0.1))
        axes = figure.subplots(1, panels, sharey=panels == 3, squeeze=False)[0]
        yield figure, list(axes)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    return MARKERS[i % len(MARKERS)]


def _line(i: int) -> dict[str, Any]:
    return {"color": _colour(i), "linestyle": DASHES[i % len(DASHES)]}


def _bars(speeds: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """Lengths of error bars below and above the medians."""
    return [[at["median"] - at["low"] for at in speeds], [at["high"] - at["median"] for at in speeds]]


def _formatted(words: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, place: words(value))


def _few_ticks(axes: Axes) -> None:
    """A logarithmic axis over less than two decades: plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import LogLocator, NullFormatter

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0) if high / low < 1000 else (1.0,)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the panels, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=min(len(labels), 4))


def _svg(figure: Figure, description: str) -> str:
    """The figure as an element of a page."""
    import matplotlib

    buffer = io.StringIO()
    # The salt makes ids the same in every run, and different between the figures of a page.
    with matplotlib.rc_context({"svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Within a page the namespaces are known, and every glyph needs a name of its own.
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)
