"""``lavagna audit``: the silent bugs of a sequence model, found."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import Threads, at_least, use_threads
from .progress import progress

if TYPE_CHECKING:
    from rich.console import Console

    from ..audit import Report

__all__ = ["audit"]

STYLES = {"pass": "green", "fail": "bold red", "accepted": "yellow", "not applicable": "dim"}
WORDS = {"pass": "pass", "fail": "FAIL", "accepted": "allowed", "not applicable": "n/a"}


def audit(
    target: Annotated[
        str,
        typer.Argument(
            help="Folder of a model, of a run or of a model of transformers; or package.module:factory, a function "
            "without arguments that returns a module or a function.",
            show_default=False,
        ),
    ],
    vocabulary: Annotated[
        int | None,
        typer.Option(help="The input is tokens below N (of a factory's model; default: found by trying).", metavar="N"),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(help="The input is vectors of N (of a factory's model; default: found by trying).", metavar="N"),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest sequence that it can read (default: what it says).", metavar="N")
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="A trap that may fail, such as no-position; may be repeated.", metavar="TRAP"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    junit: Annotated[
        Path | None, typer.Option(help="Write the verdicts as JUnit's XML, for CI.", metavar="FILE")
    ] = None,
    threads: Threads = None,
) -> None:
    """Look for the silent bugs of a sequence model: those that raise nothing, while the loss falls and text comes out.

    The exit status is 1 if a trap failed that was not allowed.
    """
    from ..audit import audit as run
    from ..audit import load_target
    from ..files import atomic_file
    from ..training import find_model

    at_least(1, vocabulary=vocabulary, width=width, max_tokens=max_tokens)
    use_threads(threads)
    path = Path(target)
    model = load_target(str(find_model(path)) if path.is_dir() and not (path / "config.json").exists() else target)
    with progress("auditing") as show:
        report = run(
            model,
            vocabulary=vocabulary,
            width=width,
            max_tokens=max_tokens,
            allow=allow or (),
            name=target,
            on_progress=lambda done, total, _: show(done, total),
        )
    if junit is not None:
        with atomic_file(junit) as temporary:
            temporary.write_text(report.to_junit(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)
    if not report.passed:
        raise typer.Exit(1)


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    _wrapped(console, f"{report.model}: {'; '.join(report.facts.values())}")
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for finding in report.findings:
        said = finding.figures() or finding.reason
        verdict = Text(WORDS[finding.status], STYLES[finding.status])
        table.add_row(verdict, Text(finding.title), Text(said, "dim"))
    console.print(table)
    notes = [f"{f.title}: {f.reason}" for f in report.findings if f.status == "pass" and f.reason]
    if notes:
        console.print()
    for note in notes:
        _wrapped(console, note, style="dim")
    for number, finding in enumerate(report.failures, 1):
        console.print()
        console.print(Text(f"{number}. {finding.title}", "bold"), Text(f"({finding.trap})", "dim"))
        for line in finding.details():
            _wrapped(console, line, "   ")
    console.print()
    console.print(Text(report.summary(), "green" if report.passed else "bold red"))


def _wrapped(console: Console, text: str, indent: str = "", style: str = "") -> None:
    """Print a paragraph, later lines further in."""
    from rich.text import Text

    lines = textwrap.wrap(text, console.width, initial_indent=indent, subsequent_indent=f"{indent}  ")
    console.print(Text("\n".join(lines), style))
