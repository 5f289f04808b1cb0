"""``python -m benchmarks``: measure every row and keep the results; with names, measure those and keep nothing."""

from __future__ import annotations

import argparse
import sys
import warnings

from .results import machine, measure_limits, today, write
from .row import Found, Row, record, run_row
from .rows import ROWS


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rows to measure (default: all, and keep the results)")
    parser.add_argument("--list", action="store_true", help="print the names of all rows and measure nothing")
    parser.add_argument("--limits", action="store_true", help="measure the limits of the machine alone")
    given = parser.parse_args(arguments)
    if given.list:
        for row in ROWS:
            print(f"{row.name:32}{row.work}; against {row.against}: {row.target}")
        return 0
    if given.limits:
        limits()
        return 0
    rows = [row for row in ROWS if not given.names or row.name in given.names]
    if unknown := set(given.names) - {row.name for row in rows}:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; --list prints their names")
    warnings.filterwarnings("ignore", message="Triton is not supported")  # fla-core, which transformers imports
    about = machine()
    bounds = [] if given.names else limits()
    records = []
    for number, row in enumerate(rows, 1):
        print(f"[{number:2}/{len(rows)}] {row.name:32}", end="", flush=True)
        found = run_row(row)
        print(tell(row, found), flush=True)
        records.append(record(row, found))
    if not given.names:
        print(f"kept in {write({'date': today(), 'machine': about, 'limits': bounds, 'rows': records})}")
    failed = [r["name"] for r in records if r["error"]]
    missed = [r["name"] for r in records if not r["met"] and not r["error"]]
    print(f"{len(records) - len(failed) - len(missed)} met, {len(missed)} not met, {len(failed)} failed to run")
    return 1 if failed else 0


def limits() -> list[dict[str, object]]:
    found = measure_limits()
    for limit in found:
        print(f"{limit['name']:45}{limit['threads']} thread(s) {limit['median']:8.3g} {limit['unit']}")
    return found


def tell(row: Row, found: Found) -> str:
    """The line of progress."""
    if found.figures is None:
        return f"failed: {found.error}  ({found.seconds:.1f} s)"
    median, low, high = (row.target.write(found.figures[key]) for key in ("median", "low", "high"))
    met = "" if row.target.open else ": met" if row.target.met(found.figures["median"]) else ": NOT MET"
    return f"{median} ({low} – {high}), {row.target}{met}  ({found.figures['rounds']} rounds, {found.seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
