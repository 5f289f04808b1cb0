"""Rows of a batch do not know each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..compare import difference
from ..finding import Example, Measurement
from ..subject import Subject

__all__ = ["neighbours"]


def neighbours(subject: Subject) -> Iterator[Measurement]:
    """Split and permute a batch: each row gives what it gives alone."""
    for tokens in subject.lengths(1, 2, 5, 67):
        for batch in (2, 3):
            x = subject.make(batch, tokens)
            together = subject.run(x).output
            alone = torch.cat([subject.run(x[row : row + 1]).output for row in range(batch)])
            size = float(alone.abs().max()) or 1.0
            yield Measurement(
                difference(together, alone, size), subject.tolerance, Example(tokens, batch, "together against alone")
            )
            yield Measurement(
                difference(subject.run(x.flip(0)).output.flip(0), alone, size),
                subject.tolerance,
                Example(tokens, batch, "in reverse order against alone"),
            )
