from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import InputError
from lavagna.scratch import (
    attention,
    learned,
    learned_backward,
    rotary,
    rotary_backward,
    sinusoidal,
)

from .support import close, draw, gradients_agree


def test_sinusoidal_by_the_formula() -> None:
    PE = sinusoidal(np.array([0, 1, 7]), 6)
    close(PE[0], [0, 1, 0, 1, 0, 1])
    for row, t in enumerate((0, 1, 7)):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            close(PE[row, 2 * i : 2 * i + 2], [np.sin(angle), np.cos(angle)])


def test_sinusoidal_is_defined_far_beyond_any_seen_length_and_does_not_depend_on_it() -> None:
    far = sinusoidal(np.array([10**6]), 8)
    assert np.isfinite(far).all()
    close(far, sinusoidal(np.array([3, 10**6]), 8)[1:], 0)


def test_a_shift_of_sinusoidal_positions_is_a_rotation() -> None:
    """PE(t + s) is a linear function of PE(t), the same one for every t."""
    before, after = sinusoidal(np.arange(20), 4), sinusoidal(np.arange(20) + 5, 4)
    M, *_ = np.linalg.lstsq(before, after, rcond=None)
    close(before @ M, after, 1e-10)
    close(M @ M.T, np.eye(4), 1e-10)


def test_learned_positions_end_with_an_error_that_says_so() -> None:
    P = draw(4, 3)
    np.testing.assert_array_equal(learned(P, np.array([1, 3])), P[[1, 3]])
    with pytest.raises(InputError, match=r"end at 3 \(T_max = 4\), got position 4"):
        learned(P, np.arange(5))
    with pytest.raises(InputError, match="begin at 0, got position -1"):
        learned(P, np.array([0, -1]))


def test_gradient_of_learned_positions() -> None:
    P, R, t = draw(5, 3), draw(2, 2, 3), np.array([1, 2])
    gradients_agree(lambda: float((learned(P, t) * R).sum()), {"P": P}, {"P": learned_backward(R, P, t)})


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    q, k = draw(8), draw(8, seed=1)

    def score(m: int, n: int) -> float:
        return float(rotary(q[None], np.array([m]))[0] @ rotary(k[None], np.array([n]))[0])

    for distance in (-3, 0, 1, 6):
        scores = [score(n + distance, n) for n in (3, 4, 50, 1000)]
        close(scores, [scores[0]] * 4, 1e-10)
    assert abs(score(1, 0) - score(2, 0)) > 1e-3
    assert abs(score(1, 0) - score(0, 1)) > 1e-3


def test_rotary_weights_do_not_change_when_all_tokens_move() -> None:
    Q, K = draw(2, 5, 6), draw(2, 5, 6, seed=1)
    here, there = (
        attention(rotary(Q, t), rotary(K, t), np.zeros((2, 5, 1)))[1] for t in (np.arange(5), np.arange(5) + 100)
    )
    close(here, there)
    assert np.abs(here - attention(Q, K, np.zeros((2, 5, 1)))[1]).max() > 1e-2


def test_rotary_keeps_lengths_and_position_zero() -> None:
    x, t = draw(3, 4, 6), np.arange(4)
    close(np.linalg.norm(rotary(x, t), axis=-1), np.linalg.norm(x, axis=-1))
    np.testing.assert_array_equal(rotary(x, t)[:, 0], x[:, 0])


def test_gradient_of_rotary() -> None:
    x, R, t = draw(2, 3, 4), draw(2, 3, 4, seed=1), np.array([0, 2, 9])
    gradients_agree(lambda: float((rotary(x, t) * R).sum()), {"x": x}, {"x": rotary_backward(R, t)})


@pytest.mark.parametrize("f", [lambda: sinusoidal(np.arange(2), 5), lambda: rotary(draw(2, 5), np.arange(2))])
def test_odd_channels_are_refused(f: object) -> None:
    with pytest.raises(InputError, match="pairs of channels, got 5 channels"):
        f()  # type: ignore[operator]
