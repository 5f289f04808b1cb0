"""Run an experiment, hold it beside what was expected, and write its page."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from ...files import atomic_file
from ..machine import processor, usable_cpus
from ..stages import write_json
from .drawing import draw
from .expectations import Check, check, expected
from .experiment import Experiment, Table, Values
from .experiments import QUESTIONS
from .work import Work

__all__ = ["Result", "page", "reproduce", "write", "write_index"]

PAGES = Path(__file__).with_name("pages")
NUMERIC = "0123456789-.>"  # what a cell with a number begins with


class Result(NamedTuple):
    """What came of an experiment: its values as JSON has them, where it was made, and each expectation."""

    name: str
    values: Values
    made: dict[str, Any]
    checks: list[Check]

    @property
    def missed(self) -> list[Check]:
        """What was not reproduced."""
        return [check for check in self.checks if not check.met]


def reproduce(name: str, experiment: Experiment, work: Work, command: str) -> Result:
    """Run an experiment and compare.

    Args:
        name: of its page and its expectations.
        experiment: what is measured.
        work: where.
        command: that was called, for the page.
    """
    values = json.loads(json.dumps(experiment.measure(work)))
    made = {
        "command": command,
        "numpy": metadata.version("numpy"),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": usable_cpus(),
    }
    return Result(name, values, made, check(values, expected(name)))


def write(result: Result, experiment: Experiment, folder: Path) -> Path:
    """Write NAME.json, the figures NAME-FIGURE.png, and NAME.md, which shows them; each whole or not at all.

    Returns:
        The page's path.
    """
    write_json(folder / f"{result.name}.json", {"made": result.made, "values": result.values})
    for figure, drawing in experiment.figures.items():
        draw(drawing, result.values, folder / f"{result.name}-{figure}.png")
    path = folder / f"{result.name}.md"
    with atomic_file(path) as temporary:
        temporary.write_text(page(result, experiment), encoding="utf-8")
    return path


def page(result: Result, experiment: Experiment) -> str:
    """The page of an experiment, in Markdown: our words, around what this run measured."""
    tables = experiment.tables(result.values)

    def figure(name: str) -> str:
        return f"![{experiment.figures[name].words}]({result.name}-{name}.png)"

    return _render(
        result.name,
        name=result.name,
        question=QUESTIONS[result.name],
        v=result.values,
        table=lambda name: _markdown(tables[name]),
        figure=figure,
        made=result.made,
        checks=result.checks,
        missed=result.missed,
    )


def write_index(results: Sequence[Result], folder: Path) -> None:
    """Write README.md, which leads to the experiments' pages."""
    rows = [
        (
            f"[{result.name}]({result.name}.md)",
            QUESTIONS[result.name],
            f"{len(result.checks) - len(result.missed)} of {len(result.checks)}",
        )
        for result in results
    ]
    with atomic_file(folder / "README.md") as temporary:
        table = _markdown(Table(("experiment", "question", "figures reproduced"), rows))
        temporary.write_text(
            _render("README", experiments=table, torch=(folder / "copy-sort-torch.md").is_file()), encoding="utf-8"
        )


def _render(template: str, **known: Any) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGES), undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    return environment.get_template(f"{template}.md").render(**known)


def _markdown(table: Table) -> str:
    """A table whose columns of numbers stand on the right, but for the first, which says what a row is about."""
    sides = ["---"]
    for column in list(zip(*table.rows, strict=True))[1:]:
        sides.append("---:" if all(cell[:1] in NUMERIC for cell in column) else "---")
    return "\n".join(f"| {' | '.join(row)} |" for row in (table.columns, sides, *table.rows))
