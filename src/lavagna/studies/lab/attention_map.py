"""The weights of a decoder that learned to copy, on one sequence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...scratch.tasks import SEPARATOR
from .ablations import FULL, L
from .drawing import heat
from .experiment import Drawing, Experiment, Table, Values
from .work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

SYMBOLS = (17, 3, 0, 12, 7, 9)
INPUT = (*SYMBOLS, SEPARATOR, *SYMBOLS[:-1])
ANSWERS = np.arange(L, 2 * L)  # the places whose output is the answer


def measure(work: Work) -> Values:
    (trained,) = work.trained([FULL])
    logits, run = trained.decoder.forward(np.array([INPUT]))
    values: Values = {"right": logits[0, L:].argmax(-1).tolist() == list(SYMBOLS), "layers": {}}
    for layer, A in enumerate(run.weights, 1):
        answers = A[0][:, ANSWERS]  # (h, L, T)
        values["layers"][str(layer)] = {
            "weight": answers.max(-1).mean(-1).tolist(),
            "six_back": (answers.argmax(-1) == ANSWERS - L).all(-1).tolist(),
            "map": np.round(A[0], 4).tolist(),
        }
    return values


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (layer, str(head), "six back, always" if six_back else "varies", f"{weight:.3f}")
        for layer, at in values["layers"].items()
        for head, (six_back, weight) in enumerate(zip(at["six_back"], at["weight"], strict=True))
    ]
    return {"heads": Table(("layer", "head", "largest weight of outputs 6–11", "its mean"), rows)}


def _draw_layer(layer: str) -> Drawing:
    def draw(values: Values, axes: list[Axes]) -> None:
        labels = ["SEP" if token == SEPARATOR else str(token) for token in INPUT]
        for head, panel in enumerate(axes):
            heat(panel, values["layers"][layer]["map"][head])
            panel.set_title(f"layer {layer}, head {head}", fontsize=9)
            panel.set_xticks(range(2 * L), labels, fontsize=6.5, rotation=90)
            panel.set_yticks(range(2 * L), labels if head == 0 else [""] * 2 * L, fontsize=6.5)
        axes[0].set_ylabel("query")

    words = {
        "1": "Weights of layer 1: heads 0, 2 and 3 draw the diagonal six keys back from the separator on",
        "2": "Weights of layer 2: no head draws a diagonal",
    }
    return Drawing(words[layer], draw, panels=(1, 1, 1, 1), height=2.5)


EXPERIMENT = Experiment(measure, tables, {f"layer-{layer}": _draw_layer(layer) for layer in ("1", "2")})
