"""Contract 5: finite outputs, states and gradients, of empty batches too."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import torch

from ..contracts import ROWS, Subject, answer, random
from .binding import binds, nan, narrowed


@hypothesis.settings(max_examples=2)
@hypothesis.example(scale=0.0, tokens=66)
@hypothesis.example(scale=1e3, tokens=66)
@hypothesis.example(scale=1e3, tokens=1)
@hypothesis.given(scale=st.sampled_from([0.0, 1e-20, 1e-3, 1e2, 1e3]), tokens=st.integers(0, 66))
def test_outputs_states_and_gradients_are_finite(subject: Subject, scale: float, tokens: int) -> None:
    narrow = subject.on(narrowed(subject, torch.float32))
    x = (scale * random(ROWS, tokens, subject.width, dtype=torch.float32)).requires_grad_()
    for name, tensor in answer(narrow, x, None, narrow(x)).items():
        assert torch.isfinite(tensor).all(), f"{name} is not finite"


@binds(representatives=True)
def test_empty_batches(subject: Subject) -> None:
    for shape in ((0, 5), (2, 0), (0, 0)):
        x = random(*shape, subject.width).requires_grad_()
        found = answer(subject, x, None, subject(x))
        assert found["output"].shape[:2] == shape
        assert not any(t.isnan().any() for t in found.values())
        mask = torch.zeros(shape, dtype=torch.bool)
        assert subject(x, token_mask=mask)[0].shape[:2] == shape


@binds(representatives=True)
def test_a_batch_of_padding_alone(subject: Subject) -> None:
    x = nan(random(3, 4, subject.width)).requires_grad_()
    found = answer(subject, x, None, subject(x, token_mask=torch.zeros(3, 4, dtype=torch.bool)))
    for name, tensor in found.items():
        assert not tensor.any(), f"{name} is not zero"
