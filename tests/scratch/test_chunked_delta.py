from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import InputError
from lavagna.scratch.memory import delta_chunked, delta_recurrent, run, wy, zoo

from .support import close, draw

T, K, V = 37, 5, 3


def sequence() -> tuple[np.ndarray, ...]:
    k = draw(T, K, seed=1)
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    beta = np.linspace(0, 2, T)
    return draw(K, V), draw(T, K), k, draw(T, V), beta


def test_rank_one_steps_equal_the_erasing_matrices() -> None:
    S, *tokens = sequence()
    O, final = delta_recurrent(S, *tokens)
    expected, last = run(zoo.delta_rule, S, *tokens)
    close(O, expected)
    close(final, last)


@pytest.mark.parametrize("chunk", [1, 2, 8, 36, 37, 64])
def test_chunks_equal_steps(chunk: int) -> None:
    O, S = delta_chunked(*sequence(), chunk=chunk)
    expected, final = delta_recurrent(*sequence())
    close(O, expected)
    close(S, final)


def test_wy_is_the_product_of_the_erasing_matrices() -> None:
    _, _, k, v, beta = sequence()
    W, U = wy(k, v, beta)
    product, written = np.eye(K), np.zeros((K, V))
    for k_t, v_t, b in zip(k, v, beta, strict=True):
        erase = np.eye(K) - b * np.outer(k_t, k_t)
        product, written = erase @ product, erase @ written + b * np.outer(k_t, v_t)
    close(np.eye(K) - k.T @ W, product)
    close(k.T @ U, written)


def test_no_token_changes_nothing() -> None:
    S, Q, k, v, beta = sequence()
    O, final = delta_chunked(S, Q[:0], k[:0], v[:0], beta[:0])
    assert O.shape == (0, V)
    close(final, S, 0)


def test_a_chunk_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="chunk must be at least 1, got 0"):
        delta_chunked(*sequence(), chunk=0)
