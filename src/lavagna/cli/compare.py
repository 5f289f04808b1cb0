"""``lavagna compare``: candidate architectures of one size, trained on your data and measured side by side."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from ..errors import ConfigError, unknown_name
from ..studies.stages import Watcher
from .common import Column, Data, Device, Threads, TokenizerName, choose_device, duration, use_threads

__all__ = ["compare"]

OUT = Path("runs/compare")
WIDE = 110  # columns, where there is no terminal that has some
TABLES = ("compare", "model", "training", "data")  # of a configuration file


def compare(
    data: Data = None,
    candidates: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated patterns of layers (default: attention,mamba,gated_deltanet,"
            "3*gated_deltanet+attention).",
            metavar="LIST",
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that each run is trained on (default: 20 per parameter). The time goes with it: this is the "
            "knob to turn.",
            metavar="N",
        ),
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(help="Size of every model, within 1.5 % (default: 300000).", metavar="N")
    ] = None,
    depth: Annotated[
        int | None,
        typer.Option(
            help="Layers to which a pattern is repeated; one without MLP counts as half (default: 4).", metavar="N"
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens in a training window (default: 512).", metavar="N")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Windows in a step (default: 8).", metavar="N")] = None,
    learning_rates: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated; each is tried for each candidate on a tenth of the tokens, and the best one is "
            "taken (default: 1e-3,3e-3,1e-2). A single one is taken without trying.",
            metavar="LIST",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Runs of each candidate; with 3 chance is measured, not assumed (default: 1).", metavar="N"),
    ] = None,
    tokenizer: TokenizerName = None,
    column: Column = None,
    pattern: Annotated[
        str | None, typer.Option(help="Of folders, read only files that match, such as '*.md'.", metavar="GLOB")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=r"TOML file: \[compare] with any setting of a comparison; \[model], \[training] and \[data] with "
            "what all candidates share, such as mixers.attention.heads = 8.",
            metavar="FILE",
        ),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Small settings: less than five minutes on two cores.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the comparison.", metavar="DIR")] = OUT,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Remove the comparison in --out first.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Train candidate architectures on your data and report which is best for it.

    All candidates get the same number of parameters and read the same tokens in the same order. Compared are bits
    per byte of held-out text, also past the trained context; training and generation speed; and the memory that
    each needs for what it has read. DIR gets report.html, results.json and the trained models.

    Interrupted, the same command goes on where it stopped. Finished, it shows the results again.

    Example: lavagna compare my_logs.txt --tokens 2000000 --candidates attention,mamba2
    """
    from ..data.sources import find_files
    from ..studies.compare import Interrupted, forget
    from ..studies.compare import compare as run
    from ..studies.config import DEMO, CompareConfig
    from ..training import DataConfig

    use_threads(threads)
    place = choose_device(device)
    given: dict[str, Any] = {
        "candidates": candidates,
        "tokens": tokens,
        "parameters": parameters,
        "depth": depth,
        "context": context,
        "batch_size": batch_size,
        "learning_rates": None if learning_rates is None else _rates(learning_rates),
        "seeds": seeds,
    }
    given_data = {"source": data or None, "tokenizer": tokenizer, "column": column, "pattern": pattern}
    tables = _tables(config)
    settings = {
        **(DEMO if demo else {}),
        **tables.get("compare", {}),
        **{key: value for key, value in given.items() if value is not None},
        "model": tables.get("model", {}),
        "training": tables.get("training", {}),
        "data": DataConfig.parse(
            {**tables.get("data", {}), **{key: value for key, value in given_data.items() if value is not None}}
        ),
    }
    wanted = CompareConfig.parse(settings)
    if overwrite:
        find_files(wanted.data.sources, pattern=wanted.data.pattern)  # a mistyped name removes nothing
        forget(out)
    try:
        with _Progress() as shown:
            results = run(wanted, out, device=place, watcher=shown)
    except (Interrupted, KeyboardInterrupt) as error:
        number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
        typer.echo("stopped; the same command goes on from here", err=True)
        raise typer.Exit(128 + number) from None
    _tell(results, out)


def _rates(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--learning-rates: expected numbers between commas, got {text!r}") from None


def _tables(path: Path | None) -> Mapping[str, Any]:
    """The tables of a configuration file."""
    from ..training import read_tables

    if path is None:
        return {}
    tables = read_tables(path)
    for name, table in tables.items():
        if name not in TABLES:
            raise ConfigError(unknown_name("table", name, TABLES))
        if not isinstance(table, Mapping):
            raise ConfigError(f"expected a table [{name}] in {str(path)!r}, got {table!r}")
    for name in TABLES[1:]:
        if name in tables.get("compare", {}):
            raise ConfigError(f"expected [{name}] beside [compare] in {str(path)!r}, got it as a key of [compare]")
    return tables


class _Progress(Watcher):
    """A bar over the whole comparison at a terminal, and a line for each stage that is over."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self.console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns = (
            BarColumn(bar_width=16),
            TextColumn("{task.percentage:3.0f} %", table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[left]}", table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, style="dim", table_column=rest),
        )
        self.bar = Progress(
            *columns, console=self.console, transient=True, expand=True, disable=not self.console.is_terminal
        )
        self.task = self.bar.add_task("", total=1.0, left="")
        self.total = self.before = self.known = self.work = 0.0
        self.title = ""
        self.started = self.stage_started = time.monotonic()

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def begin(self, work: float) -> None:
        self.total = work

    def stage(self, title: str, work: float, *, known: bool) -> None:
        self.title, self.work, self.stage_started = title, work, time.monotonic()
        if known:
            self.known += work
            self.before += work
        self.progress(0.0, "")

    def progress(self, share: float, facts: str) -> None:
        done = self.before + share * self.work
        here = done - self.known  # by this process: what was known took it no time
        left = ""
        if here > 0:
            seconds = (time.monotonic() - self.started) / here * max(self.total - done, 0)
            left = f"{duration(seconds)} left"
        doing = ", ".join(filter(None, (self.title, facts)))
        self.bar.update(self.task, completed=done, total=self.total, description=doing, left=left)

    def done(self, title: str, outcome: str) -> None:
        self.before += self.work
        self.console.print(f"{title}: {outcome} ({duration(time.monotonic() - self.stage_started)})")


def _tell(results: Mapping[str, Any], out: Path) -> None:
    """The table, a sample of each candidate, the verdict, and where the rest is."""
    from rich.console import Console
    from rich.table import Table

    from ..report.words import bits, count, size

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = WIDE
    ranked = sorted(results["candidates"], key=lambda candidate: candidate["bits_per_byte"]["value"])
    longest = count(ranked[0]["memory"][-1]["context"])
    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column("candidate")
    native = ranked[0]["speed"]["native"] is not None
    for title in (
        "parameters",
        "bits per byte",
        "training\ntokens/s",
        *(["times as fast\nas portable"] if native else []),
        f"generation\nafter {longest}\ntokens/s",
        f"state\nafter {longest}",
    ):
        table.add_column(title, justify="right", vertical="bottom")
    for candidate in ranked:
        speed = candidate["speed"]
        table.add_row(
            candidate["name"],
            count(candidate["parameters"]),
            _quality(candidate["bits_per_byte"]),
            count(speed["training"]["median"]),
            *([f"{speed['native']['median']:.1f}"] if native else []),
            count(speed["generation"][-1]["median"]),
            size(candidate["memory"][-1]["bytes"]),
        )
    table.add_row("table of token pairs", "", bits(results["baselines"]["bigram"]["value"]))
    table.add_row("gzip -9", "", bits(results["baselines"]["gzip"]))
    console.print()
    console.print(table)
    console.print()
    for candidate in ranked:
        sample = candidate["sample"]
        console.print(f"--- {candidate['name']} goes on from {sample['prompt']!r}:")
        console.print(_shown(sample["text"]))
    console.print()
    for statement in results["verdict"]:
        if statement["kind"] in ("headline", "warning", "finding") or statement["topic"] in ("seeds", "budget"):
            mark = "WARNING: " if statement["kind"] == "warning" else ""
            console.print(f"{mark}{statement['text']}")
    console.print()
    # A path that is broken over two lines cannot be copied.
    console.print(f"report: {out / 'report.html'} (with figures, and all that it does not show)", soft_wrap=True)
    quoted = shlex.quote(str(out / ranked[0]["folder"]))
    console.print(f"next:   lavagna generate {quoted} 'a prompt'", soft_wrap=True)


def _quality(interval: Mapping[str, Any]) -> str:
    from ..report.words import bits

    if interval["low"] is None:
        return bits(interval["value"])
    return f"{bits(interval['value'])} ±{bits((interval['high'] - interval['low']) / 2)}"


def _shown(text: str) -> str:
    """Sampled text without what would move a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
