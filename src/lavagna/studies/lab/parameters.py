"""The numbers that a block learns, counted and by formula."""

from __future__ import annotations

import numpy as np

from ...scratch import Config, Decoder, block_parameters
from .experiment import Experiment, Table, Values
from .training import SHAPE, Training
from .work import Work

__all__ = ["EXPERIMENT", "measure"]

WIDTHS = (64, 256, 512)
PARTS = {
    "attention": ("Wq", "Wk", "Wv", "Wo", "bq", "bk", "bv", "bo"),
    "feed_forward": ("W1", "b1", "W2", "b2"),
    "norms": ("gamma1", "beta1", "gamma2", "beta2"),
}


def measure(work: Work) -> Values:
    values: Values = {"blocks": {}}
    for d in WIDTHS:
        decoder = Decoder(Config(vocab=1, d=d, layers=1, d_ff=4 * d, t_max=1), np.random.default_rng(0))
        block = decoder.layer(0)
        parts = {part: sum(block[name].size for name in names) for part, names in PARTS.items()}
        counted = sum(theta.size for theta in block.values())
        values["blocks"][str(d)] = {**parts, "counted": counted, "formula": block_parameters(d)}
    training = Training("copy", L=6, seed=0, shape=SHAPE)
    values["decoder"] = training.decoder(np.random.default_rng(0)).size
    return values


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (d, *(f"{counts[name]:,}" for name in (*PARTS, "counted", "formula"))) for d, counts in values["blocks"].items()
    ]
    titles = ("d", "attention", "feed-forward", "norms", "together", "12 d² + 13 d")
    return {"blocks": Table(titles, rows)}


EXPERIMENT = Experiment(measure, tables)
