"""The model runs at all."""

from __future__ import annotations

from collections.abc import Iterator

from ..finding import Example, Measurement, ModelError
from ..subject import Subject

__all__ = ["crashes"]

LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 63, 64, 65, 67, 130)


def crashes(subject: Subject) -> Iterator[Measurement]:
    """Every length up to more than two usual chunks, and every small batch, gives an output of that size.

    Where a length fails, the checks that follow make do with shorter ones.
    """
    for tokens in subject.lengths(*LENGTHS):
        for batch in (1, 2, 3) if tokens < 16 else (1,):
            example = Example(tokens, batch, "one call")
            try:
                subject.run(subject.make(batch, tokens))
            except ModelError as error:
                subject.end_at(tokens - 1)
                yield Measurement(1.0, 0.0, example, f"the model {error}")
            yield Measurement(0.0, 0.0, example)
    if subject.takes_state and subject.longest(4) == 4:
        example = Example(4, 1, "3 tokens, then 1 from the state")
        try:
            subject.read(subject.make(1, 1), subject.read(subject.make(1, 3)).state)
        except ModelError as error:
            yield Measurement(1.0, 0.0, example, f"the model {error}")
        yield Measurement(0.0, 0.0, example)
