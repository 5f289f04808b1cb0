"""Two tasks that can be learned in seconds and looked into: copy the symbols, or sort them."""

from __future__ import annotations

from typing import Literal

import numpy as np

from .arrays import Array, Tokens

__all__ = ["SEPARATOR", "SYMBOLS", "Task", "batch", "sequences"]

Task = Literal["copy", "sort"]
SYMBOLS = 20
SEPARATOR = 20  # one more token


def sequences(task: Task, symbols: Tokens) -> Tokens:
    """(B, L) symbols -> (B, 2 L + 1): the symbols, the separator, the answer."""
    answer = symbols if task == "copy" else np.sort(symbols, axis=1)
    return np.concatenate([symbols, np.full((len(symbols), 1), SEPARATOR), answer], 1)


def batch(task: Task, rng: np.random.Generator, B: int, L: int) -> tuple[Tokens, Tokens, Array]:
    """Inputs, targets and weights, (B, 2 L) each: the weights are 1 where the answer is predicted."""
    whole = sequences(task, rng.integers(0, SYMBOLS, (B, L)))
    weights = np.zeros((B, 2 * L))
    weights[:, L:] = 1.0
    return whole[:, :-1], whole[:, 1:], weights
