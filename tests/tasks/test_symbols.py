"""Copy and sort: the held-out sequences, and how answers are counted."""

from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import ShapeError
from lavagna.tasks import accuracy, held_out


def test_held_out_sequences_are_those_of_the_protocol() -> None:
    symbols = np.random.default_rng(999).integers(0, 20, (500, 6))
    prompts, answers = held_out("copy", 6)
    np.testing.assert_array_equal(prompts, np.column_stack([symbols, np.full(500, 20)]))
    np.testing.assert_array_equal(answers, symbols)
    prompts, answers = held_out("sort", 6, count=3)
    np.testing.assert_array_equal(prompts[:, :-1], np.random.default_rng(999).integers(0, 20, (3, 6)))
    np.testing.assert_array_equal(answers, np.sort(prompts[:, :-1], axis=1))


def test_accuracy_by_hand() -> None:
    right = np.array([[1, 2], [3, 4], [5, 6], [7, 8]])
    found = accuracy(np.array([[1, 2], [3, 0], [0, 0], [7, 8]]), right)
    assert (found.per_token, found.per_sequence) == (5 / 8, 2 / 4)
    assert found.right.tolist() == [[True, True], [True, False], [False, False], [True, True]]
    assert found.whole.tolist() == [True, False, False, True]


def test_too_few_answers_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"expected answers of shape \(2, 3\), got \(2, 2\)"):
        accuracy(np.zeros((2, 2), dtype=np.int64), np.zeros((2, 3), dtype=np.int64))
