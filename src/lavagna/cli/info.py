"""``lavagna info``: what is installed here, and which implementation each operator can use."""

from __future__ import annotations

import json
import platform
from importlib import import_module, metadata
from typing import Annotated, Any

import typer

from ..studies.machine import processor, usable_cpus

__all__ = ["EXTRAS", "gather", "info"]

#: extra -> the distribution that it brings
EXTRAS = {
    "hf": "transformers",
    "parquet": "pyarrow",
    "tensorboard": "tensorboard",
}


def info(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Tell what is installed here and which implementation each operator can use.

    Every implementation that cannot be used is named with all its reasons.
    """
    facts = gather()
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _print(facts)


def gather() -> dict[str, Any]:
    """Everything that ``lavagna info`` tells, as plain values.

    Returns:
        versions: distribution -> version.
        extras: extra -> its version or None, and the command that installs it.
        device: name of the processor; whether torch can use CUDA and MPS here.
        threads: how many torch uses, and how many this process may use.
        native: whether the extension is there, its compiler, the instruction sets that it can use and the one in use,
            whether it shares torch's OpenMP threads, and what is missing.
        operators: one entry for each operator, implementation and form, with every reason against it
            (none: it is usable here; a single call may still be refused).
    """
    import torch

    from .. import __version__, native
    from ..ops import OPS

    versions = {"lavagna": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in ("torch", "numpy")}
    return {
        "versions": versions,
        "extras": {
            extra: {"version": _installed(name), "install": f"pip install 'lavagna[{extra}]'"}
            for extra, name in EXTRAS.items()
        },
        "device": {
            "cpu": processor(),
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        },
        "threads": {"torch": torch.get_num_threads(), "usable": usable_cpus()},
        "native": {
            "available": native.available(),
            "compiler": native.compiler(),
            "instruction_sets": native.instruction_sets(),
            "instruction_set": native.instruction_set(),
            "bfloat16_products": native.bfloat16_products(),
            "openmp": native.openmp(),
            "missing": native.missing(),
        },
        "operators": [
            {"operator": name, "impl": row.impl, "form": row.form, "reasons": table.reasons(row)}
            for name, package in OPS.items()
            for table in [import_module(f"{package}.api").TABLE]
            for row in table.rows
        ],
    }


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..ops.dispatch import FORMS

    console = Console(highlight=False, markup=False, soft_wrap=True)
    general = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, version in facts["versions"].items():
        general.add_row(name, version)
    for name, extra in facts["extras"].items():
        general.add_row(f"[{name}]", extra["version"] or f"not installed: {extra['install']}")
    device = facts["device"]
    general.add_row("processor", device["cpu"])
    for name in ("cuda", "mps"):
        general.add_row(name, "available" if device[name] else "not available")
    general.add_row("threads", f"{facts['threads']['torch']} of {facts['threads']['usable']}")
    native = facts["native"]
    if native["available"]:
        others = ", ".join(name for name in native["instruction_sets"] if name != native["instruction_set"])
        general.add_row("native", f"built by {native['compiler']}")
        general.add_row("", f"runs on {native['instruction_set']}" + (f" (could: {others})" if others else ""))
        if native["bfloat16_products"]:
            general.add_row("", 'products of bfloat16 numbers where torch.set_float32_matmul_precision is "medium"')
        shared = f"on the {facts['threads']['torch']} threads of torch's OpenMP"
        alone = "on one thread: torch has no OpenMP runtime here that kernels could share"
        general.add_row("", shared if native["openmp"] else alone)
    for reason in native["missing"]:
        general.add_row("native", reason)
    console.print(general)

    notes: list[str] = []
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for entry in facts["operators"]:
        notes += [reason for reason in entry["reasons"] if reason not in notes]
        numbers = " ".join(str(notes.index(reason) + 1) for reason in entry["reasons"])
        cells.setdefault((entry["operator"], entry["impl"]), {})[entry["form"]] = (
            f"no ({numbers})" if entry["reasons"] else "yes"
        )
    usable = Table("operator", "impl", *FORMS, box=None, padding=(0, 2, 0, 0))
    for (operator, impl), forms in cells.items():
        usable.add_row(operator, impl, *(forms.get(form, "-") for form in FORMS))
    console.print()
    console.print(usable)
    for number, note in enumerate(notes, 1):
        console.print(f"({number}) {note}")
