"""Contract 2: a sequence may be cut anywhere."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import torch

from lavagna.ops.tree import leaves, map_tensors, named_leaves

from ..contracts import ROWS, Subject, agree, answer, exact_whole, in_pieces, inputs, random, read_state, values
from .binding import binds, stateful


@binds("cut anywhere", subset=True)
@hypothesis.settings(max_examples=2)
@hypothesis.example(cuts=[0, 0, 1, 64, 70])
@hypothesis.given(cuts=st.lists(st.integers(0, 70), max_size=5).map(sorted))
def test_pieces_of_any_length_equal_the_whole(subject: Subject, cuts: list[int]) -> None:
    x, state = inputs(subject, ROWS, 70, ROWS)
    agree(answer(subject, x, state, in_pieces(subject, x, state, cuts)), exact_whole(subject, 70))


@binds("cut anywhere")
def test_one_token_at_a_time_equals_the_whole(subject: Subject) -> None:
    x, start = inputs(subject, ROWS, 9, ROWS)
    outputs, state = [], start
    for token in x.unbind(1):
        output, state = subject.step(token, state)
        outputs.append(output)
    agree(answer(subject, x, start, (torch.stack(outputs, 1), state)), exact_whole(subject, 9))


@binds(only=stateful)
def test_no_state_is_the_first_state_is_a_state_of_zeros(subject: Subject) -> None:
    x, _ = inputs(subject, ROWS, 7, ROWS)
    first = subject.module.init_state(ROWS)
    assert not any(t.any() for t in leaves(first))
    expected = subject(x)
    zeros = map_tensors(torch.zeros_like, subject(x[:, :0])[1])
    for state in (first, zeros):
        assert [(name, t.shape, t.dtype) for name, t in named_leaves(state)] == [
            (name, t.shape, t.dtype) for name, t in named_leaves(first)
        ]
        agree(values(*subject(x, state)), values(*expected), 1e-14)


@binds("cut anywhere", representatives=True)
def test_no_token_changes_no_state(subject: Subject) -> None:
    state = read_state(subject, 3)
    for mask in (None, torch.zeros(3, 0, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)):
        x = random(3, 0 if mask is None else mask.shape[1], subject.width)
        output, final = subject(x, state, token_mask=mask)
        assert output.shape[:2] == x.shape[:2]
        assert not output.any()
        agree(values(output, final), values(output, state), 0)
