from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lavagna.errors import InputError, ShapeError
from lavagna.scratch import cross_entropy, cross_entropy_backward

from .support import close, draw, gradients_agree, leaf

TARGETS = np.array([[0, 3, 1], [4, 4, 2]])
WEIGHTS = np.array([[0.0, 1.0, 0.5], [2.0, 0.0, 1.0]])


def test_by_hand() -> None:
    logits = np.log([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
    loss, _ = cross_entropy(logits, np.array([[1, 0]]), np.array([[3.0, 1.0]]))
    assert loss == pytest.approx((3 * math.log(4) + math.log(10)) / 4)


def test_equals_torch_with_its_gradient() -> None:
    logits = draw(2, 3, 5)
    theirs = leaf(logits)
    each = F.cross_entropy(theirs.flatten(0, 1), torch.from_numpy(TARGETS).flatten(), reduction="none")
    expected = (each * torch.from_numpy(WEIGHTS).flatten()).sum() / WEIGHTS.sum()
    expected.backward()
    loss, run = cross_entropy(logits, TARGETS, WEIGHTS)
    close(loss, expected.item())
    close(cross_entropy_backward(run), theirs.grad)


def test_gradient() -> None:
    logits = draw(2, 3, 5)
    _, run = cross_entropy(logits, TARGETS, WEIGHTS)
    gradients_agree(
        lambda: cross_entropy(logits, TARGETS, WEIGHTS)[0],
        {"logits": logits},
        {"logits": cross_entropy_backward(run)},
    )


def test_positions_without_weight_hear_nothing() -> None:
    _, run = cross_entropy(draw(2, 3, 5), TARGETS, WEIGHTS)
    dlogits = cross_entropy_backward(run)
    np.testing.assert_array_equal(dlogits.any(-1), WEIGHTS > 0)


def test_extreme_logits() -> None:
    logits = np.array([[[2000.0, 0.0]]])
    weights = np.ones((1, 1))
    loss, run = cross_entropy(logits, np.array([[1]]), weights)
    assert loss == 2000.0  # p underflows, its logarithm does not
    close(cross_entropy_backward(run), [[[1.0, -1.0]]])


def test_refusals() -> None:
    with pytest.raises(InputError, match=r"positive sum, got 0\.0"):
        cross_entropy(draw(2, 3, 5), TARGETS, np.zeros((2, 3)))
    with pytest.raises(ShapeError, match=r"targets must have shape \(2, 3\), got \(3, 2\)"):
        cross_entropy(draw(2, 3, 5), TARGETS.T, WEIGHTS)
    with pytest.raises(ShapeError, match=r"weights must have shape \(2, 3\), got \(3,\)"):
        cross_entropy(draw(2, 3, 5), TARGETS, WEIGHTS[0])
