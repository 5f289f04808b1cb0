"""Reading on from a state is reading the whole."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject

__all__ = ["continuing", "interleaving", "reordering", "reusing", "stepping"]


def _needs_state(subject: Subject) -> None:
    if not subject.takes_state:
        raise NotApplicable("it returns no state")


def stepping(subject: Subject) -> Iterator[Measurement]:
    """Prefill, then one token at a time, against one pass."""
    _needs_state(subject)
    for tokens, prefills in ((2, (1,)), (3, (1, 2)), (5, (1, 4)), (20, (3,)), (67, (61, 64)), (260, (258,))):
        if subject.longest(tokens) < tokens:
            return
        for batch in (1, 2) if tokens < 20 else (2,):
            x = subject.make(batch, tokens)
            whole = subject.run(x).output
            for prefill in prefills:
                part, state = subject.read(x[:, :prefill])
                parts = [part]
                for t in range(prefill, tokens):
                    part, state = subject.read(x[:, t : t + 1], state)
                    parts.append(part)
                yield Measurement(
                    difference(torch.cat(parts, 1), whole),
                    subject.tolerance,
                    Example(tokens, batch, f"{_count(prefill)} at once, then one by one"),
                )


def continuing(subject: Subject) -> Iterator[Measurement]:
    """Prefill, then several tokens at once, against one pass."""
    _needs_state(subject)
    splits = ((1, 2), (2, 2), (2, 3), (1, 2, 3), (5, 7), (63, 2), (64, 66), (100, 30), (250, 10))
    for pieces in sorted(splits, key=sum):
        tokens = sum(pieces)
        if subject.longest(tokens) < tokens:
            return
        for batch in (1, 2):
            x = subject.make(batch, tokens)
            state, parts = None, []
            for piece in x.split(list(pieces), 1):
                part, state = subject.read(piece, state)
                parts.append(part)
            yield Measurement(
                difference(torch.cat(parts, 1), subject.run(x).output),
                subject.tolerance,
                Example(tokens, batch, ", then ".join(map(_count, pieces)) + " at once"),
            )


def interleaving(subject: Subject) -> Iterator[Measurement]:
    """Two sequences read in turns, each with its state, against one after the other."""
    _needs_state(subject)
    for prefill, steps in ((1, 1), (2, 1), (2, 2), (5, 2)):
        if subject.longest(prefill + steps) < prefill + steps:
            return
        first, second = (subject.make(1, prefill + steps, seed=seed) for seed in (1, 2))
        alone = [_read_on(subject, x, prefill) for x in (first, second)]
        states = [subject.read(x[:, :prefill]).state for x in (first, second)]
        turns: list[list[torch.Tensor]] = [[], []]
        for t in range(prefill, prefill + steps):
            for row, x in enumerate((first, second)):
                output, states[row] = subject.read(x[:, t : t + 1], states[row])
                turns[row].append(output)
        for row in (0, 1):
            yield Measurement(
                difference(torch.cat(turns[row], 1), alone[row]),
                subject.tolerance,
                Example(prefill + steps, 1, f"two sequences in turns, {_count(prefill)} and then one by one"),
            )


def _read_on(subject: Subject, x: torch.Tensor, prefill: int) -> torch.Tensor:
    state = subject.read(x[:, :prefill]).state
    parts = []
    for t in range(prefill, x.shape[1]):
        part, state = subject.read(x[:, t : t + 1], state)
        parts.append(part)
    return torch.cat(parts, 1)


def reordering(subject: Subject) -> Iterator[Measurement]:
    """Rows of a state forked, swapped and left out, against rows that were read in that order."""
    _needs_state(subject)
    for tokens in subject.lengths(1, 2, 5, 20):
        if subject.longest(tokens + 1) <= tokens:
            return
        for index in ([1, 0], [0, 0], [1], [1, 0, 1, 1]):
            x = subject.make(2, tokens)
            state = subject.select(subject.read(x).state, index)
            following = subject.make(len(index), 1, seed=1)
            expected = subject.read(following, subject.read(x[index]).state).output
            yield Measurement(
                difference(subject.read(following, state).output, expected),
                subject.tolerance,
                Example(tokens + 1, 2, f"rows {index} of the state after {_count(tokens)}"),
            )


def reusing(subject: Subject) -> Iterator[Measurement]:
    """The same state read from twice gives the same twice, also after another continuation."""
    _needs_state(subject)
    for tokens in subject.lengths(1, 3, 20):
        for more in (1, 2):
            if subject.longest(tokens + more) < tokens + more:
                return
            state = subject.read(subject.make(1, tokens)).state
            following, another = (subject.make(1, more, seed=seed) for seed in (1, 2))
            first = subject.read(following, state).output
            subject.read(another, state)
            yield Measurement(
                difference(subject.read(following, state).output, first),
                subject.tolerance,
                Example(tokens + more, 1, f"{_count(more)} read twice from the state after {_count(tokens)}"),
            )


def _count(tokens: int) -> str:
    return "1 token" if tokens == 1 else f"{tokens} tokens"
