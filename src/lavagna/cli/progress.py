"""Progress of long work on standard error: a bar at a terminal, plain lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from .common import duration

__all__ = ["TrainingProgress", "progress"]

LINES = 20  # lines of a whole run that is not shown at a terminal; but one a minute
MINUTE = 60.0
PATIENCE = 15.0  # seconds between lines of other work
GRACE = 0.5  # seconds in which other work may end without a bar


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show how far some work is: the function given is to be called with (done, total)."""
    console = Console(stderr=True, highlight=False)
    begin = time.monotonic()
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"))
        bar = Progress(*columns, console=console, transient=True)
        task = bar.add_task(what, total=None)

        def draw(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if time.monotonic() - begin > GRACE:
                bar.start()

        try:
            yield draw
        finally:
            bar.stop()
        return
    last = begin

    def line(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > PATIENCE:
            last = time.monotonic()
            console.print(f"{what}: {100 * done / max(total, 1):.0f} %")

    yield line


class TrainingProgress:
    """Shows a run: step, loss, tokens a second, time left; and a line for each evaluation.

    Args:
        steps: of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.done = self.tokens = 0  # by this process, which may have resumed a run
        self.training_seconds = self.seconds = self.due = 0.0
        self.bar: Progress | None = None
        if self.console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                console=self.console,
                transient=True,
            )
            self.training = self.bar.add_task("training", total=steps, facts="")
            self.evaluation: TaskID | None = None

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.stop()

    def observe(self, line: Mapping[str, Any]) -> None:
        """Take a line of metrics."""
        step = line["step"]
        self.seconds += line["seconds"]
        if "validation_bits_per_byte" in line:
            self._end_evaluation()
            bits = line["validation_bits_per_byte"]
            self.console.print(f"step {step}: {bits:.4f} bits per byte on held-out data")
            return
        self.done += 1
        self.tokens += line["tokens"]
        self.training_seconds += line["seconds"]
        speed = self.tokens / self.training_seconds
        left = self.seconds / self.done * (self.steps - step)
        facts = f"loss {line['loss']:.4f}  {speed:,.0f} tokens/s  {duration(left)} left"
        if self.bar is not None:
            self.bar.update(self.training, completed=step, facts=facts)
        elif step % max(self.steps // LINES, 1) == 0 or self.seconds > self.due:
            self.due = self.seconds + MINUTE
            self.console.print(f"step {step}/{self.steps}  {facts}")

    def evaluating(self, done: int, total: int) -> None:
        """Take the progress of an evaluation."""
        if self.bar is not None:
            if self.evaluation is None:
                self.evaluation = self.bar.add_task("evaluating", facts="tokens")
            self.bar.update(self.evaluation, completed=done, total=total)

    def _end_evaluation(self) -> None:
        if self.bar is not None and self.evaluation is not None:
            self.bar.remove_task(self.evaluation)
            self.evaluation = None
