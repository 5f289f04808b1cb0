from __future__ import annotations

import numpy as np
import torch

from lavagna.scratch import softmax, softmax_backward

from .support import close, draw, gradients_agree, leaf


def test_by_hand() -> None:
    close(softmax(np.log([[1.0, 2.0, 5.0]])), [[0.125, 0.25, 0.625]], 1e-15)


def test_equals_torch_with_its_gradient() -> None:
    x, dp = draw(3, 4, 7), draw(3, 4, 7, seed=1)
    theirs = leaf(x)
    p = torch.softmax(theirs, -1)
    p.backward(torch.from_numpy(dp))
    close(softmax(x), p.detach())
    close(softmax_backward(dp, softmax(x)), theirs.grad)


def test_contraction_equals_the_jacobian() -> None:
    p, dp = softmax(draw(5)), draw(5, seed=1)
    jacobian = np.diag(p) - np.outer(p, p)
    close(softmax_backward(dp, p), jacobian @ dp)


def test_gradient() -> None:
    x, R = draw(2, 5), draw(2, 5, seed=1)
    gradients_agree(lambda: float((softmax(x) * R).sum()), {"x": x}, {"x": softmax_backward(R, softmax(x))})


def test_large_scores_do_not_overflow_and_change_nothing() -> None:
    x = draw(2, 5)
    close(softmax(x + 1e6), softmax(x), 1e-9)  # 1e6 leaves the scores ten digits
    close(softmax(np.array([8e307, -8e307, 8e307])), [0.5, 0.0, 0.5])


def test_hidden_scores_weigh_nothing_and_a_row_of_them_is_zero() -> None:
    x = np.array([[0.0, -np.inf, 0.0], [-np.inf, -np.inf, -np.inf]])
    close(softmax(x), [[0.5, 0.0, 0.5], [0.0, 0.0, 0.0]])


def test_input_is_left_alone() -> None:
    x = draw(2, 5)
    before = x.copy()
    softmax(x)
    np.testing.assert_array_equal(x, before)
