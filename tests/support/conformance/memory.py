"""Contract 6: constant memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lavagna.ops.tree import leaves, nbytes

from ..contracts import Subject, kept_bytes, random
from .binding import binds, narrowed, stateful


@binds(only=stateful)
def test_bytes_of_the_state_are_as_announced(subject: Subject) -> None:
    for dtype, contexts in ((torch.float32, (0, 1, 4, 5, 100)), (torch.bfloat16, (0, 5)), (torch.float64, (0, 5))):
        narrow = subject.on(narrowed(subject, dtype))
        assert nbytes(narrow.module.init_state(3)) == narrow.state_bytes(0, 3)
        for context in contexts:
            with torch.no_grad():
                _, state = narrow(random(3, context, subject.width, dtype=dtype))
            assert nbytes(state) == narrow.state_bytes(context, 3), f"after {context} tokens in {dtype}"
            assert [t.dtype for t in leaves(state)] == [t.dtype for t in leaves(narrow.module.init_state(3))]


def state_sizes(subject: Subject, contexts: Sequence[int]) -> list[int]:
    with torch.no_grad():
        return [nbytes(subject(random(1, context, subject.width))[1]) for context in contexts]


@binds("constant memory")
def test_the_state_does_not_grow(subject: Subject) -> None:
    assert len(set(state_sizes(subject, (50, 100, 200)))) == 1
    assert len({subject.state_bytes(context) for context in (50, 100, 10**9)}) == 1


@binds("constant memory", only=stateful)
def test_the_state_keeps_no_other_memory_alive(subject: Subject) -> None:
    """A state that is a view of a longer tensor keeps all of it in memory."""

    def whole(tokens: int) -> int:
        return kept_bytes(subject(random(2, tokens, subject.width))[1])

    def masked(tokens: int) -> int:
        mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 9]])
        return kept_bytes(subject(random(2, tokens, subject.width), token_mask=mask)[1])

    def by_steps(tokens: int) -> int:
        state = subject.module.init_state(2)
        for _ in range(tokens):
            _, state = subject.step(random(2, subject.width), state)
        return kept_bytes(state)

    with torch.no_grad():
        for read, few in ((whole, 50), (masked, 50), (by_steps, 20)):
            assert read(few) == read(2 * few), read.__name__
