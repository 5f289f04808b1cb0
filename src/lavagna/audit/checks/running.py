"""The model runs at all."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Example, Measurement, ModelError
from ..subject import Subject

__all__ = ["crashes"]

LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 63, 64, 65, 67, 130)


def crashes(subject: Subject) -> Iterator[Measurement]:
    """Every length up to more than two usual chunks, and every small batch, gives an output of that size."""
    for tokens in subject.lengths(*LENGTHS):
        for batch in (1, 2, 3) if tokens < 16 else (1,):
            note, value = "", 0.0
            try:
                subject.run(subject.make(batch, tokens))
            except ModelError as error:
                note, value = f"the model {error}", 1.0
            yield Measurement(value, 0.0, Example(tokens, batch, "one call"), note)
