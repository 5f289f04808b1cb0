"""What a study has done so far: the result of each stage in a file, so that a study goes on where it stopped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files import atomic_file

__all__ = ["Stages", "Tick", "Watcher", "write_json"]

#: called with the share of a stage that is done, and what else is known of it
Tick = Callable[[float, str], None]


class Watcher:
    """Who wants to know how far a study is; this one does not care."""

    def begin(self, work: float) -> None:
        """The study begins, of so much work in all (a trained token is 1)."""

    def stage(self, title: str, work: float, *, known: bool) -> None:
        """A stage begins, of so much work; or it is `known` from an earlier call and over at once."""

    def progress(self, share: float, facts: str) -> None:
        """So much of the stage is done."""

    def done(self, title: str, outcome: str) -> None:
        """The stage is over."""


class Stages:
    """Runs each stage once; a second call, in another process too, gets the result of the first.

    Args:
        folder: for the results.
        watcher: told of each stage.
    """

    def __init__(self, folder: Path, watcher: Watcher) -> None:
        self.folder, self.watcher = folder, watcher

    def once(self, title: str, work: float, compute: Callable[[Tick], Any], outcome: Callable[[Any], str]) -> Any:
        """The result of a stage, computed unless it is known.

        Args:
            title: names the stage, and its file.
            work: how much it is.
            compute: makes the result, plain data.
            outcome: says in a few words what came out.
        """
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9_.+-]+', '-', title)}.json"
        known = path.is_file()
        self.watcher.stage(title, work, known=known)
        if known:
            return json.loads(path.read_text(encoding="utf-8"))
        result = compute(self.watcher.progress)
        write_json(path, result)
        self.watcher.done(title, outcome(result))
        # What comes from the file and what was just computed shall be the same to the last type.
        return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all."""
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
