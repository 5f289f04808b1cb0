"""``metrics.jsonl``: one line a step and one an evaluation; a resumed run goes on where its checkpoint was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..files import atomic_file

__all__ = ["METRICS", "Metrics", "read_metrics"]

METRICS = "metrics.jsonl"
#: keys whose values depend on the machine and the moment, not on the computation
TIMES = ("seconds", "tokens_per_second")


class Metrics:
    """Appends lines to ``metrics.jsonl``.

    Args:
        run: the run's folder.
        step: steps done: later lines of an interrupted run are dropped; 0 begins anew.
        writes: whether this process writes (rank 0 does).
    """

    def __init__(self, run: Path, step: int, *, writes: bool = True) -> None:
        self.path = run / METRICS
        self.writes = writes
        lines = [line for line in read_metrics(run) if line["step"] <= step] if step else []
        self.evaluated = {line["step"] for line in lines if "validation_bits_per_byte" in line}
        if writes:
            with atomic_file(self.path) as temporary:
                temporary.write_text("".join(map(_line, lines)))

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line."""
        if "validation_bits_per_byte" in values:
            self.evaluated.add(values["step"])
        if self.writes:
            with self.path.open("a") as file:
                file.write(_line(values))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's ``metrics.jsonl``; a last line cut off by a crash is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values)) + "\n"
