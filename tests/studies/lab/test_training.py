"""A training by the protocol: its draws, what can be changed, and what is reported."""

from __future__ import annotations

import numpy as np
import pytest

from lavagna.scratch import Adam, Config, Decoder, batch, softmax, train_step
from lavagna.studies.lab.training import Shape, Training, train


def quiet(share: float) -> None:
    pass


def test_one_generator_draws_the_decoder_and_then_every_batch() -> None:
    rng = np.random.default_rng(3)
    decoder = Decoder(Config(vocab=21, d=32, heads=4, layers=2, d_ff=128, t_max=7), rng)
    adam = Adam(decoder.params)
    losses = [train_step(decoder, adam, *batch("sort", rng, 32, 3), 3e-3)[0] for _ in range(4)]
    trained = train(Training("sort", 3, seed=3, steps=4), quiet)
    assert trained.losses.tolist() == losses
    for name, theta in decoder.params.items():
        np.testing.assert_array_equal(trained.decoder.params[name], theta)


def test_the_loss_is_the_protocols() -> None:
    training = Training("copy", 3, seed=1, steps=1)
    rng = np.random.default_rng(1)
    decoder = training.decoder(rng)
    inputs, targets, weights = batch("copy", rng, 32, 3)
    p = softmax(decoder.forward(inputs)[0])
    right = np.take_along_axis(p, targets[..., None], -1)[..., 0]
    (loss,) = train(training, quiet).losses
    assert loss == pytest.approx(-(weights * np.log(right + 1e-12)).sum() / weights.sum(), abs=1e-9)


def test_without_positions_the_table_stays_zero_and_nothing_else_changes_its_draws() -> None:
    training = Training("copy", 3, seed=0, positions=False, steps=3)
    before = training.decoder(np.random.default_rng(0))
    assert not before.params["P"].any()
    with_positions = Training("copy", 3, seed=0).decoder(np.random.default_rng(0))
    for name in before.params.keys() - {"P"}:
        np.testing.assert_array_equal(before.params[name], with_positions.params[name])
    after = train(training, quiet).decoder
    assert not after.params["P"].any()
    assert (after.params["E"] != before.params["E"]).any()


def test_warm_up_makes_the_first_steps_smaller() -> None:
    def moved(warm_up: int) -> float:
        training = Training("copy", 3, seed=0, warm_up=warm_up, steps=1)
        before = training.decoder(np.random.default_rng(0)).params["Wout"]
        return float(np.abs(train(training, quiet).decoder.params["Wout"] - before).max())

    # The first step of Adam is of the size of the rate.
    assert moved(0) == pytest.approx(3e-3, rel=1e-3)
    assert moved(100) == pytest.approx(3e-5, rel=1e-3)


def test_the_shape_reaches_the_decoder() -> None:
    shape = Shape(d=16, heads=2, layers=3, norm="post", scale=1.0)
    config = Training("copy", 4, seed=0, shape=shape).decoder(np.random.default_rng(0)).config
    assert config == Config(vocab=21, d=16, heads=2, layers=3, d_ff=64, t_max=9, norm="post", scale=1.0)


def test_progress_grows() -> None:
    told: list[float] = []
    train(Training("copy", 2, seed=0, steps=60), told.append)
    assert told == [0, 25 / 60, 50 / 60]
