"""Copy the symbols, or sort them: sequences of L symbols, a separator, the answer.

The draws are those of `lavagna.scratch.tasks`, whatever learns from them, so that engines can stand side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ShapeError
from ..scratch.tasks import SYMBOLS, Task, batch, sequences

__all__ = ["HELD_OUT", "Accuracy", "Task", "accuracy", "batch", "held_out"]

HELD_OUT = 999  # seed of the sequences that nobody is trained on

Tokens = NDArray[np.int64]


class Accuracy(NamedTuple):
    """Shares of right answers, by token and by whole sequence, and which tokens are right (N, L)."""

    per_token: float
    per_sequence: float
    right: NDArray[np.bool_]

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Which sequences are right from end to end (N,)."""
        return np.asarray(self.right.all(1))


def held_out(task: Task, L: int, count: int = 500) -> tuple[Tokens, Tokens]:
    """Prompts (count, L + 1), symbols and the separator, and the right answers (count, L)."""
    whole = sequences(task, np.random.default_rng(HELD_OUT).integers(0, SYMBOLS, (count, L)))
    return whole[:, : L + 1], whole[:, L + 1 :]


def accuracy(answers: Tokens, right: Tokens) -> Accuracy:
    """Compare answers (N, L) with the right ones.

    Raises:
        ShapeError: there are not as many.
    """
    if answers.shape != right.shape:
        raise ShapeError(f"accuracy: expected answers of shape {right.shape}, got {answers.shape}")
    same = answers == right
    return Accuracy(float(same.mean()), float(same.all(1).mean()), same)
