"""Results of a whole run: what the file holds, and the table that docs/performance.md shows of it."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import lavagna
from lavagna import native
from lavagna.studies.machine import processor, usable_cpus

from .limits import LIMITS
from .measure import measured
from .row import Target, spread

__all__ = ["FOLDER", "PAGE", "file_name", "latest", "machine", "measure_limits", "put_into_page", "render"]

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- measured: {} -->", "<!-- end of what was measured -->"

THREADS = (1, 2)


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "processor": processor(),
        "cpus": usable_cpus(),
        "instruction_set": native.instruction_set(),
        "compiler": native.compiler(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": {
            "lavagna": lavagna.__version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "transformers", "mambapy")},
        },
        "load": round(os.getloadavg()[0], 2),
    }


def measure_limits() -> list[dict[str, Any]]:
    """Each limit of the machine at 1 and 2 threads."""
    found = []
    for name, (unit, factor, make) in LIMITS.items():
        for threads in THREADS:
            figures = [figure * factor for figure in measured(make, threads)]
            found.append({"name": name, "threads": threads, "unit": unit, **spread(figures)})
    return found


def file_name(found: Mapping[str, Any]) -> str:
    """DATE-MACHINE.json."""
    words = re.sub(r"[^a-z0-9]+", "-", found["machine"]["processor"].lower()).strip("-")
    return f"{found['date']}-{words}-{found['machine']['cpus']}-cores.json"


def today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def latest() -> Path | None:
    """The newest file of results, if there is one."""
    return max(FOLDER.glob("*.json"), default=None)


def render(found: Mapping[str, Any]) -> str:
    """The tables of a run in Markdown."""
    about = found["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{found['date']}: {about['processor']}, {about['cpus']} cores, {about['instruction_set']}, {about['system']}; "
        f"{about['compiler']}; {versions}. Load when it began: {about['load']}.",
        "",
        "| work | against | at least | measured (quartiles) | |",
        "| --- | --- | --- | --- | --- |",
        *map(_row, found["rows"]),
        "",
        "| limit of the machine | 1 thread | 2 threads |",
        "| --- | --- | --- |",
    ]
    by_name: dict[str, list[str]] = {}
    for limit in found["limits"]:
        by_name.setdefault(f"{limit['name']}, {limit['unit']}", []).append(f"{limit['median']:.3g}")
    lines += [f"| {name} | {' | '.join(values)} |" for name, values in by_name.items()]
    return "\n".join(lines)


def _row(row: Mapping[str, Any]) -> str:
    target = Target(**row["target"])
    if row["figures"] is None:
        measured, verdict = f"failed: {row['error']}", "no figure"
    else:
        median, low, high = (target.write(row["figures"][key]) for key in ("median", "low", "high"))
        measured, verdict = f"**{median}** ({low} – {high})", "" if target.open else "met" if row["met"] else "not met"
    cells = [row["work"], row["against"], str(target), measured.replace("|", "\\|"), verdict]
    return f"| {' | '.join(cells)} |"


def put_into_page(page: str, name: str, found: Mapping[str, Any]) -> str:
    """The page with the tables of the results `name` between its markers."""
    begin, end = re.escape(BEGIN).replace(r"\{\}", ".*"), re.escape(END)
    text = f"{BEGIN.format(name)}\n\n{render(found)}\n\n{END}"
    page, count = re.subn(f"{begin}.*?{end}", lambda match: text, page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"expected one pair of markers in the page, found {count}")
    return page


def write(found: Mapping[str, Any]) -> Path:
    """Keep a run: its file, and its tables in the page."""
    path = FOLDER / file_name(found)
    FOLDER.mkdir(exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(put_into_page(PAGE.read_text(encoding="utf-8"), path.name, found), encoding="utf-8")
    return path
