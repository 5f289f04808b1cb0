"""A causal mask inside of the softmax and after it, and two masks combined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...scratch import causal_mask, padding_mask, softmax, visible
from .drawing import heat
from .experiment import Drawing, Experiment, Table, Values
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

TOKENS = 5
LENGTHS = [5, 3]


def measure(work: Work) -> Values:
    scores = np.random.default_rng(3).normal(size=(TOKENS, TOKENS))
    seen = causal_mask(TOKENS)
    before = softmax(np.where(seen, scores, -np.inf))
    after = np.where(seen, softmax(scores), 0.0)
    both = visible(seen, padding_mask(LENGTHS, TOKENS))  # (B, 1, T, S)
    return {
        "before": before.tolist(),
        "after": after.tolist(),
        "row_sums": after.sum(-1).tolist(),
        "gap": float(np.abs(before - after).max()),
        "keys_of_the_second_sequence": [np.flatnonzero(row).tolist() for row in both[1, 0]],
    }


def tables(values: Values) -> dict[str, Table]:
    keys = values["keys_of_the_second_sequence"]
    rows = [(str(t), f"{total:.3f}", ", ".join(map(str, keys[t]))) for t, total in enumerate(values["row_sums"])]
    return {"rows": Table(("query", "sum of its row, masked after", "keys seen, length 3 of 5"), rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, name, title in zip(axes, ("before", "after"), ("mask, then softmax", "softmax, then mask"), strict=True):
        heat(panel, values[name])
        for t, row in enumerate(values[name]):
            for s, weight in enumerate(row[: t + 1]):
                panel.text(
                    s, t, f"{weight:.2f}", ha="center", va="center", color="white" if weight > 0.5 else "#333333"
                )
            panel.text(len(row) - 0.35, t, f"Σ = {sum(row):.2f}", va="center")
        panel.set(title=title, xlabel="key", ylabel="query")


WORDS = "Weights of five queries: rows sum to one if the mask comes before the softmax, and to less if it comes after"
EXPERIMENT = Experiment(measure, tables, {"weights": Drawing(WORDS, _draw, panels=(1, 1), height=3.6)})
