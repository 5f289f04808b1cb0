"""The model runs at all."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from ..finding import Example, Measurement, ModelError
from ..subject import Subject

__all__ = ["crashes"]

#: short ones, ends of chunks, and the longest that other checks read at once
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 33, 63, 64, 65, 67, 130, 260, 300, 1024)


def crashes(subject: Subject) -> Iterator[Measurement]:
    """Every length up to a thousand and every small batch gives an output of that size.

    Where a length fails, the checks that follow make do with shorter ones. It is no failure where a table ends.
    """
    read, end = 0, ""
    for tokens in subject.lengths(*LENGTHS):
        for batch in (1, 2, 3) if tokens < 16 else (1,):
            error = _error(subject, batch, tokens)
            if error is None:
                continue
            shortest, error = _shortest(subject, batch, read, tokens, error)
            subject.end_at(shortest - 1)
            table = _table(subject, shortest - 1)
            if table is None:
                yield Measurement(1.0, 0.0, Example(shortest, batch, "one call"), f"the model {error}")
            end = f"longer than {shortest - 1} tokens, the size of {table}, the model {error}"
            break
        if end:
            break
        read = tokens
    if subject.takes_state and subject.longest(4) == 4:
        example = Example(4, 1, "3 tokens, then 1 from the state")
        try:
            subject.read(subject.make(1, 1), subject.read(subject.make(1, 3)).state)
        except ModelError as error:
            yield Measurement(1.0, 0.0, example, f"the model {error}")
    yield Measurement(0.0, 0.0, Example(read, 1, "one call"), end)


def _error(subject: Subject, batch: int, tokens: int) -> ModelError | None:
    try:
        subject.run(subject.make(batch, tokens))
    except ModelError as error:
        return error
    return None


def _shortest(subject: Subject, batch: int, good: int, bad: int, error: ModelError) -> tuple[int, ModelError]:
    """Between a length that runs and one that does not: one that does not, behind one that does; and its error."""
    while bad - good > 1:
        middle = (good + bad) // 2
        found = _error(subject, batch, middle)
        if found is None:
            good = middle
        else:
            bad, error = middle, found
    return bad, error


def _table(subject: Subject, size: int) -> str | None:
    """The name of a table of positions, or of a mask, that has this size."""
    for place, module in [] if subject.module is None else subject.module.named_modules():
        tensors = dict(module.named_buffers(recurse=False))
        if isinstance(module, nn.Embedding):
            if module.num_embeddings == size != subject.adapter.vocabulary:
                return place
        elif not type(module).__module__.startswith("torch.nn"):
            tensors |= dict(module.named_parameters(recurse=False))
        for name, tensor in tensors.items():
            if size in tensor.shape[:-1] or tensor.shape == (size,):
                return f"{place}.{name}" if place else name
    return None
