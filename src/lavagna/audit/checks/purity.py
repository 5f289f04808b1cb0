"""A call is a function of its input: it changes nothing, and nothing but the input changes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..compare import difference
from ..finding import Example, Measurement, ModelError
from ..subject import Subject

__all__ = ["earlier_calls", "input_mutated", "memory_layout"]

LENGTHS = (1, 3, 67)


def input_mutated(subject: Subject) -> Iterator[Measurement]:
    """After a call the input, the mask and the state that came in are what they were."""
    for tokens in subject.lengths(*LENGTHS):
        x = subject.make(2, tokens)
        given = x.clone()
        subject.run(given)
        yield _same([given], [x], Example(tokens, 2, "the input after the call"))
        if subject.adapter.takes_mask:
            mask = torch.arange(tokens) < torch.tensor([[tokens], [max(tokens - 1, 1)]])
            held = mask.clone()
            subject.run(x.clone(), mask=held)
            yield _same([held], [mask], Example(tokens, 2, "the mask after the call"))
        if subject.takes_state and not subject.adapter.uses_up_state:
            state = subject.read(x.clone()).state
            before = [t.clone() for t in subject.state_tensors(state)]
            subject.read(subject.make(2, 1, seed=1), state)
            after = subject.state_tensors(state)
            yield _same(after, before, Example(tokens + 1, 2, "the state that was read from, after the call"))


def _same(after: list[Tensor], before: list[Tensor], example: Example) -> Measurement:
    if len(after) != len(before):
        return Measurement(float("inf"), 0.0, example)
    changed = [difference(a, b) if a.shape == b.shape else float("inf") for a, b in zip(after, before, strict=True)]
    return Measurement(max(changed, default=0.0), 0.0, example)


def earlier_calls(subject: Subject) -> Iterator[Measurement]:
    """The same input gives the same output, whatever the model was called with before."""
    for tokens in subject.lengths(*LENGTHS):
        x = subject.make(1, tokens)
        first = subject.run(x).output
        yield Measurement(
            difference(subject.run(x).output, first),
            subject.tolerance,
            Example(tokens, 1, "the same call twice"),
            cause="the model draws random numbers in evaluation mode (dropout left on) or counts its calls",
        )
        held = subject.run(x, copied=False).output
        subject.run(subject.other(x))
        yield Measurement(
            difference(held, first),
            subject.tolerance,
            Example(tokens, 1, "the output of a call after the next call"),
            cause="an output buffer is kept on the module and written again by the next call",
        )
        for what, call in _calls(subject, tokens):
            with contextlib.suppress(ModelError):  # whether it runs is another check's question
                call()
            yield Measurement(
                difference(subject.run(x).output, first),
                subject.tolerance,
                Example(tokens, 1, f"the same call before and after {what}"),
            )


def _calls(subject: Subject, tokens: int) -> Iterator[tuple[str, Callable[[], object]]]:
    more = subject.longest(tokens + 5)
    yield "a longer input", lambda: subject.run(subject.make(1, more, seed=1))
    yield "an input of three rows", lambda: subject.run(subject.make(3, tokens, seed=2))
    if subject.takes_state:
        yield "a call that wants the state", lambda: subject.read(subject.make(2, tokens, seed=3))
    if subject.adapter.takes_mask:
        mask = torch.arange(tokens)[None] < max(tokens - 1, 1)
        yield "one with padding", lambda: subject.run(subject.make(1, tokens, seed=5), mask=mask)
    yield "one with gradients", lambda: subject.run(subject.make(1, tokens, seed=4), grad=True)


def memory_layout(subject: Subject) -> Iterator[Measurement]:
    """The same numbers in another order of memory give the same output."""
    for tokens in subject.lengths(*LENGTHS):
        x = subject.make(2, tokens)
        expected = subject.run(x).output
        for what, view in _views(x):
            yield Measurement(
                difference(subject.run(view).output, expected), subject.tolerance, Example(tokens, 2, what)
            )
        same = x[:1].expand(2, *x.shape[1:])
        yield Measurement(
            difference(subject.run(same).output, subject.run(same.contiguous()).output),
            subject.tolerance,
            Example(tokens, 2, "one row expanded to two"),
        )


def _views(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """x as it lies in other memory, with something else between its elements."""
    yield "time first in memory", x.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.stack([x, x.flip(0, 1)], 2).flatten(1, 2)
    yield "every second token of a longer one", wide[:, ::2]
    if x.ndim == 3:
        yield "channels first in memory", x.transpose(1, 2).contiguous().transpose(1, 2)
