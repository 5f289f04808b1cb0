"""A training of copy or sort from scratch, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...scratch import Adam, Config, Decoder, generate, train_step
from ...scratch.block import Norm
from ...tasks import Accuracy, Task, accuracy, batch, held_out

__all__ = ["BATCH", "SHAPE", "VOCABULARY", "Shape", "Trained", "Training", "train"]

BATCH = 32
VOCABULARY = 21  # twenty symbols and the separator
EVERY = 25  # steps between two reports


@dataclass(frozen=True)
class Shape:
    """What changes of a decoder between experiments; names as in lavagna.scratch.Config."""

    d: int = 32
    heads: int = 4
    layers: int = 2
    norm: Norm = "pre"
    scale: float | None = None


SHAPE = Shape()


@dataclass(frozen=True)
class Training:
    """A task, its length, the seed of all draws, the decoder's shape, and how it is trained.

    Args:
        positions: False: the table of positions is zero and stays so.
        warm_up: steps over which the rate grows to `rate`.
    """

    task: Task
    L: int
    seed: int
    shape: Shape = SHAPE
    positions: bool = True
    rate: float = 3e-3
    warm_up: int = 0
    steps: int = 1500

    @property
    def work(self) -> float:
        """About how long it takes, beside others."""
        return self.steps * self.L * self.shape.layers * self.shape.d

    def decoder(self, rng: np.random.Generator) -> Decoder:
        """Before the first step."""
        s = self.shape
        config = Config(
            VOCABULARY, s.d, s.heads, s.layers, d_ff=4 * s.d, t_max=2 * self.L + 1, norm=s.norm, scale=s.scale
        )
        decoder = Decoder(config, rng)
        if not self.positions:
            decoder.params["P"][:] = 0
        return decoder


class Trained(NamedTuple):
    """The losses before each step (steps,), the decoder after the last one, and its answers to held-out sequences."""

    losses: np.ndarray
    decoder: Decoder
    accuracy: Accuracy


def train(training: Training, tick: Callable[[float], None]) -> Trained:
    """One generator draws the decoder and then every batch.

    The protocol writes the loss as −Σ w ln(p + 1e-12)/Σ w, and its figures come from the gradient of −Σ w ln p/Σ w, as
    here: with that of the sum inside of the logarithm copy without positions ends at a loss of .748, not .734.
    """
    rng = np.random.default_rng(training.seed)
    decoder = training.decoder(rng)
    adam = Adam(decoder.params)
    losses = np.empty(training.steps)
    for step in range(training.steps):
        rate = training.rate * min((step + 1) / max(training.warm_up, 1), 1)
        losses[step], _ = train_step(decoder, adam, *batch(training.task, rng, BATCH, training.L), rate)
        if not training.positions:
            decoder.params["P"][:] = 0
        if step % EVERY == 0:
            tick(step / training.steps)
    prompts, right = held_out(training.task, training.L)
    return Trained(losses, decoder, accuracy(generate(decoder, prompts, training.L), right))
