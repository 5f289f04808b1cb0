"""``metrics.jsonl``: one line a step and one an evaluation; a resumed run goes on where its checkpoint was."""

from __future__ import annotations

import json
import math
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

    Attributes:
        evaluated: steps after which there was an evaluation, with its bits per byte.
    """

    def __init__(self, run: Path, step: int, *, writes: bool = True) -> None:
        self.path = run / METRICS
        self.writes = writes
        lines = [line for line in read_metrics(run) if line["step"] <= step] if step else []
        self.evaluated: dict[int, float] = {}
        for line in lines:
            self._note(line)
        if writes:
            with atomic_file(self.path) as temporary:
                temporary.write_text("".join(map(_line, lines)))

    def write(self, values: Mapping[str, Any]) -> None:
        """Append one line."""
        self._note(values)
        if self.writes:
            with self.path.open("a") as file:
                file.write(_line(values))

    @property
    def bits_per_byte(self) -> float:
        """Of the last evaluation; NaN if there was none."""
        return self.evaluated[max(self.evaluated)] if self.evaluated else math.nan

    def _note(self, values: Mapping[str, Any]) -> None:
        if "validation_bits_per_byte" in values:
            self.evaluated[values["step"]] = values["validation_bits_per_byte"]


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """All whole lines of a run's ``metrics.jsonl``; a last line cut off by a crash is left out."""
    path = run / METRICS
    if not path.is_file():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values)) + "\n"
