"""The copy task, trained once by the protocol: what is reached, and what the heads look at."""

from __future__ import annotations

import numpy as np
import pytest

from lavagna.scratch import Adam, Config, Decoder, batch, cross_entropy, generate, sequences, train_step
from lavagna.scratch.tasks import SEPARATOR, SYMBOLS


def test_batches_by_hand() -> None:
    assert sequences("copy", np.array([[3, 1, 2]])).tolist() == [[3, 1, 2, 20, 3, 1, 2]]
    assert sequences("sort", np.array([[3, 1, 2]])).tolist() == [[3, 1, 2, 20, 1, 2, 3]]
    inputs, targets, weights = batch("sort", np.random.default_rng(5), 32, 4)
    symbols = np.random.default_rng(5).integers(0, SYMBOLS, (32, 4))
    np.testing.assert_array_equal(inputs[:, :5], np.column_stack([symbols, np.full(32, SEPARATOR)]))
    np.testing.assert_array_equal(targets[:, 4:], np.sort(symbols, 1))
    np.testing.assert_array_equal(inputs[:, 1:], targets[:, :-1])
    assert weights.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]] * 32


def test_a_step_gives_the_loss_before_it_and_lowers_it() -> None:
    rng = np.random.default_rng(0)
    decoder = Decoder(Config(vocab=21, d=16, t_max=9), rng)
    adam, one = Adam(decoder.params), batch("copy", rng, 8, 4)
    inputs, targets, weights = one
    before, _ = cross_entropy(decoder.forward(inputs)[0], targets, weights)
    losses = [train_step(decoder, adam, *one, 3e-3)[0] for _ in range(30)]
    assert losses[0] == before
    assert losses[-1] < losses[0] / 2


@pytest.fixture(scope="module")
def trained() -> tuple[Decoder, float]:
    """Copy, L = 6, seed 0: the decoder and its last loss."""
    rng = np.random.default_rng(0)
    decoder = Decoder(Config(vocab=21, d=32, heads=4, layers=2, d_ff=128, t_max=13), rng)
    adam = Adam(decoder.params)
    for _ in range(1500):
        loss, _ = train_step(decoder, adam, *batch("copy", rng, 32, 6), 3e-3)
    return decoder, loss


def test_protocol_copy(trained: tuple[Decoder, float]) -> None:
    decoder, loss = trained
    assert f"{loss:.4f}" == "0.0002"
    symbols = np.random.default_rng(999).integers(0, SYMBOLS, (500, 6))
    whole = sequences("copy", symbols)
    np.testing.assert_array_equal(generate(decoder, whole[:, :7], 6), symbols)


def test_protocol_attention_map(trained: tuple[Decoder, float]) -> None:
    symbols = [17, 3, 0, 12, 7, 9]
    logits, run = trained[0].forward(np.array([[*symbols, SEPARATOR, *symbols[:-1]]]))
    assert logits[0, 6:].argmax(-1).tolist() == symbols
    outputs = np.arange(6, 12)
    first, second = (A[0][:, outputs] for A in run.weights)  # (h, 6, 12)
    six_back = [(first[h].argmax(-1) == outputs - 6).all() for h in range(4)]
    assert six_back == [True, False, True, True]
    assert [f"{first[h].max(-1).mean():.3f}" for h in range(4)] == ["0.835", "0.416", "0.996", "0.767"]
    assert [f"{second[h].max(-1).mean():.3f}" for h in range(4)] == ["0.355", "0.369", "0.365", "0.391"]
