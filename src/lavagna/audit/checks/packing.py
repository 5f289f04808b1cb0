"""Sequences packed into one row do not know each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject

__all__ = ["packed"]

LENGTHS = ((1, 1), (2, 1), (3, 0, 2), (5, 1, 7), (64, 3), (20, 70, 1))


def packed(subject: Subject) -> Iterator[Measurement]:
    """Packed sequences give what each gives alone, and so does reading on from their state."""
    if not subject.adapter.takes_packing:
        raise NotApplicable("it takes no boundaries of packed sequences (cu_seqlens)")
    for lengths in sorted(LENGTHS, key=sum):
        tokens = sum(lengths)
        if subject.longest(tokens + 1) <= tokens:
            return
        sequences = [subject.make(1, n, seed=row + 1) for row, n in enumerate(lengths)]
        boundaries = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        parts = " + ".join(map(str, lengths))
        together = subject.read(torch.cat(sequences, 1), cu_seqlens=boundaries)
        alone = [subject.read(x) if x.shape[1] else None for x in sequences]
        yield Measurement(
            difference(together.output, torch.cat([a.output for a in alone if a is not None], 1)),
            subject.tolerance,
            Example(tokens, 1, f"{parts} tokens in one row against each alone"),
        )
        if subject.takes_state:
            following = subject.make(len(lengths), 1, seed=9)
            expected = [
                subject.read(following[row : row + 1], None if a is None else a.state).output
                for row, a in enumerate(alone)
            ]
            yield Measurement(
                difference(subject.read(following, together.state).output, torch.cat(expected)),
                subject.tolerance,
                Example(tokens + 1, len(lengths), f"the tokens after {parts} packed ones"),
            )
