"""Contract 4: the past cannot see the future."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import torch

from ..contracts import ROWS, Subject, agree, inputs, random
from ..operators import upstream
from .binding import binds


@binds("the past cannot see the future", subset=True)
def test_the_past_has_no_gradient_from_the_future(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 70, ROWS)
    output, _ = subject(x, state)
    for t in (1, 16, 33, 63, 64, 65):
        (gradient,) = torch.autograd.grad(
            output[:, :t], x, upstream(output[:, :t].shape, x.dtype, torch.float32), retain_graph=True
        )
        leak = gradient[:, t:].abs().max().item()
        assert leak <= 1e-14 * gradient.abs().max().item(), f"outputs before {t} depend on tokens at or after it"


@binds("the past cannot see the future", representatives=True)
@hypothesis.settings(max_examples=2)
@hypothesis.example(t=64)
@hypothesis.given(t=st.integers(0, 69))
def test_changing_tokens_changes_nothing_before_them(subject: Subject, t: int) -> None:
    x, other = random(1, 70, subject.width), random(1, 70, subject.width, seed="other")
    with torch.no_grad():
        output, got = subject(x)[0], subject(torch.cat([x[:, :t], other[:, t:]], 1))[0]
    agree({"outputs before": got[:, :t]}, {"outputs before": output[:, :t]}, 1e-14)
    assert not torch.equal(got[:, t:], output[:, t:])
