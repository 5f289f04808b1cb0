"""``lavagna lab``: the experiments on attention and on what replaces it, reproduced."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, unknown_name
from .common import duration
from .progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from ..studies.lab import Result
    from ..studies.lab.experiment import Experiment, Table

__all__ = ["lab"]

OUT = Path("runs/lab")
WIDE = 120  # columns, where there is no terminal that has some
ENGINES = ("numpy", "torch")
ON_TORCH = "copy-sort"  # what the models of torch can be put through


def lab(
    names: Annotated[
        str,
        typer.Argument(help="An experiment, several with commas between, all of them, or list.", metavar="NAMES"),
    ] = "list",
    out: Annotated[Path, typer.Option(help="Folder of the pages, figures and numbers.", metavar="DIR")] = OUT,
    engine: Annotated[
        str, typer.Option(help="numpy: from scratch; torch: copy-sort with models of torch.", metavar="NAME")
    ] = "numpy",
    mixer: Annotated[
        str | None,
        typer.Option(help="With --engine torch: a mixer, several with commas between, or all.", metavar="NAME"),
    ] = None,
) -> None:
    """Reproduce experiments: tables here, and in DIR a page with figures and a JSON file for each.

    Seeds are fixed. Each experiment is held beside the figures that it must reproduce; if one is not, it is listed at
    the end, and the exit status is 1.
    """
    if names == "list" and engine == "numpy" and mixer is None:
        _list()
    elif _run(_chosen(names, engine, mixer), out, whole=names == "all"):
        raise typer.Exit(1)


def _list() -> None:
    from rich.table import Table as Grid

    from ..studies.lab import EXPERIMENTS

    grid = Grid(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, (_, question) in EXPERIMENTS.items():
        grid.add_row(name, question)
    _console().print(grid)


def _chosen(names: str, engine: str, mixer: str | None) -> dict[str, tuple[Experiment, str]]:
    """The experiments to run, by the names of their pages, and the command for each."""
    from ..studies.lab import chosen, each_once, load

    if engine not in ENGINES:
        raise InputError(unknown_name("engine", engine, ENGINES))
    if engine == "numpy":
        if mixer is not None:
            raise InputError("--mixer chooses among the models of torch: it goes with --engine torch")
        return {name: (load(name), f"lavagna lab {name}") for name in chosen(names)}
    if names != ON_TORCH:
        raise InputError(f"--engine torch: expected {ON_TORCH}, the experiment for models of torch, got {names!r}")
    if mixer is None:
        raise InputError("--engine torch: expected --mixer NAME or --mixer all beside it")
    from ..mixers.registry import MIXERS, mixer_class
    from ..studies.lab.copy_sort_torch import experiment

    mixers = list(MIXERS) if mixer == "all" else each_once("mixer", mixer)
    for name in mixers:
        mixer_class(name)
    return {f"{ON_TORCH}-torch": (experiment(mixers), f"lavagna lab {ON_TORCH} --engine torch --mixer {mixer}")}


def _run(experiments: Mapping[str, tuple[Experiment, str]], out: Path, *, whole: bool) -> bool:
    """Run, show and write experiments; whether something was not reproduced."""
    from ..studies.lab import Work, reproduce, write, write_index

    console = _console()
    results: list[Result] = []
    with _ended_by_sigterm(), Work() as work:
        for i, (name, (experiment, command)) in enumerate(experiments.items(), 1):
            begin = time.monotonic()
            with progress(f"{name} ({i} of {len(experiments)})") as tick:
                work.report = tick
                result = reproduce(name, experiment, work, command)
            results.append(result)
            page = write(result, experiment, out)
            console.print(f"--- {name}, {duration(time.monotonic() - begin)}, {page}")
            for table in experiment.tables(result.values).values():
                _show(console, table)
    if whole:
        write_index(results, out)
    return _tell_missed(console, results)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM leaves by an exception, so that the processes that work for this one are told."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(console: Console, table: Table) -> None:
    from rich.table import Table as Grid

    grid = Grid(box=None, padding=(0, 2, 0, 0))
    for i, title in enumerate(table.columns):
        grid.add_column(title, justify="right" if i else "left", vertical="bottom")
    for row in table.rows:
        grid.add_row(*row)
    console.print(grid)
    console.print()


def _tell_missed(console: Console, results: list[Result]) -> bool:
    """How many figures were reproduced, and each that was not."""
    missed = [(result.name, check) for result in results for check in result.missed]
    total = sum(len(result.checks) for result in results)
    console.print(f"{total - len(missed)} of {total} expected figures reproduced")
    for name, check in missed:
        console.print(f"not reproduced: {name}: {check}{f' ({check.reason})' if check.reason else ''}")
    return bool(missed)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDE
    return console
