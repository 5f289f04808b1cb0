"""Contract 7: clear refusal."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError, StateError

from ..contracts import Subject, random, read_state
from .binding import binds, stateful
from .ownership import as_model_state


def refused(error: type[Exception], words: str, subject: Subject, x: Any, state: Any = None, **arguments: Any) -> None:
    with pytest.raises(error, match=words) as caught:
        subject(x, state, **arguments)
    assert "\n" not in str(caught.value)


class _Strange(NamedTuple):
    """The state of something else."""

    memory: Tensor


@binds(representatives=True)
def test_what_does_not_fit_is_refused(subject: Subject) -> None:
    D = subject.width
    x, mask = random(2, 5, D), torch.ones(2, 5, dtype=torch.bool)
    bounds = torch.tensor([0, 2, 5])
    refused(ShapeError, f"D={D}.*got|got.*{D + 1}", subject, random(2, 5, D + 1))
    refused(ShapeError, r"got .*\[5, 16\]", subject, random(5, D))
    refused(InputError, "token_mask or cu_seqlens, not both", subject, x, token_mask=mask, cu_seqlens=bounds)
    refused(ShapeError, "must be bool.*got torch.int64", subject, x, token_mask=mask.long())
    refused(ShapeError, r"token_mask.*got .*\[2, 4\]", subject, x, token_mask=mask[:, :4])
    refused(ShapeError, "packed sequences need batch 1, got batch 2", subject, x, cu_seqlens=bounds)
    refused(InputError, r"rise from 0 to T=5, got \[0, 2, 4\]", subject, x[:1], cu_seqlens=torch.tensor([0, 2, 4]))
    refused(ShapeError, "int32 or int64", subject, x[:1], cu_seqlens=torch.tensor([0.0, 5.0]))
    refused(ShapeError, "int32 or int64 tensor .* got list", subject, x[:1], cu_seqlens=[0, 5])
    refused(ShapeError, "must have a floating dtype, got torch.int64", subject, x.long())
    refused(ShapeError, "must be a tensor of shape .* got list", subject, x.tolist())
    refused(StateError, "state must be .*, got a _Strange", subject, x, _Strange(x))
    with pytest.raises(TypeError, match="token_maks"):
        subject(x, token_maks=mask)


@binds(only=stateful, representatives=True)
def test_rows_of_a_state_that_are_none_are_refused(subject: Subject) -> None:
    state = as_model_state(read_state(subject, 3))
    for rows in (torch.tensor([True]), torch.ones(4, dtype=torch.bool), torch.tensor([1, 0, 0]), [True, False, False]):
        with pytest.raises(StateError, match=r"reset: rows must be a bool tensor of shape \[3\], got"):
            state.reset(rows)
    for index in (torch.tensor([0.0]), torch.tensor([[0, 1]]), torch.tensor([True, False, True]), [0, 1]):
        with pytest.raises(StateError, match=r"reorder: rows must be an int64 tensor of shape \[n\], got"):
            state.reorder(index)
    for index in (torch.tensor([3]), torch.tensor([0, -1])):
        with pytest.raises(StateError, match="reorder: rows must be from 0 to 2, got"):
            state.reorder(index)
    with pytest.raises(StateError, match="n must be at least 1, got 0"):
        state.fork(0)


@binds(only=stateful, representatives=True)
def test_a_state_of_other_rows_is_refused(subject: Subject) -> None:
    state = read_state(subject, 3)
    x = random(2, 5, subject.width)
    refused(StateError, "must have 2 rows, got 3", subject, x, state)
    refused(StateError, "must have 2 rows, got 3", subject, x, state, token_mask=torch.ones(2, 5, dtype=torch.bool))
    refused(StateError, "must have 2 rows, got 3", subject, x[:1], state, cu_seqlens=torch.tensor([0, 2, 5]))
    refused(StateError, "must have 2 rows, got 0", subject, x, subject.module.init_state(0))
