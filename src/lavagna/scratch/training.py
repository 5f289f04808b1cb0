"""One step of training, and answers one token at a time."""

from __future__ import annotations

import numpy as np

from .adam import Adam
from .arrays import Array, Tokens
from .decoder import Decoder
from .loss import cross_entropy, cross_entropy_backward

__all__ = ["generate", "train_step"]


def train_step(
    decoder: Decoder,
    adam: Adam,
    inputs: Tokens,
    targets: Tokens,
    weights: Array,
    rate: float,
) -> tuple[float, dict[str, Array]]:
    """Forward, backward, and one step of Adam.

    Args:
        decoder: whose parameters `adam` changes.
        inputs, targets, weights: (B, T), see cross_entropy.
        rate: of Adam.

    Returns:
        The loss before the step, and its gradients.
    """
    logits, run = decoder.forward(inputs)
    loss, loss_run = cross_entropy(logits, targets, weights)
    gradients = decoder.backward(cross_entropy_backward(loss_run), run)
    adam.step(gradients, rate)
    return loss, gradients


def generate(decoder: Decoder, prompt: Tokens, new: int, *, cached: bool = True) -> Tokens:
    """Continue with the most probable token, `new` times.

    Args:
        decoder: what predicts.
        prompt: (B, T), T > 0.
        new: tokens to add.
        cached: keep keys and values, and read each token once; or read everything again for each new token. The
            answers are the same.

    Returns:
        (B, new).

    Raises:
        InputError: the prompt is empty, or the sequence would leave the table of learned positions.
    """
    B, T = prompt.shape
    caches = decoder.caches(B, T + new) if cached else None
    tokens, read = prompt, prompt
    for _ in range(new):
        logits, _ = decoder.forward(read, caches=caches)
        last = logits[:, -1].argmax(-1)[:, None]
        tokens = np.concatenate([tokens, last], 1)
        read = last if cached else tokens
    return tokens[:, T:]
