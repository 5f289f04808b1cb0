"""The same four matrices read as one, two, four and eight heads, on tokens in order and permuted."""

from __future__ import annotations

import numpy as np

from ...scratch import Heads, multi_head
from .experiment import Experiment, Table, Values
from .work import Work

__all__ = ["EXPERIMENT", "measure"]

WIDTH, TOKENS = 64, 6
HEADS = (1, 2, 4, 8)


def measure(work: Work) -> Values:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(1, TOKENS, WIDTH))
    matrices = {name: rng.normal(size=(WIDTH, WIDTH)) / 8 for name in ("Wq", "Wk", "Wv", "Wo")}
    order = rng.permutation(TOKENS)
    p = matrices | {name: np.zeros(WIDTH) for name in ("bq", "bk", "bv", "bo")}
    values: Values = {"order": order.tolist(), "parameters": {}, "equivariance": {}, "unpermuted": {}}
    for h in HEADS:
        Y, _ = multi_head(X, p, Heads(h, h))
        Z, _ = multi_head(X[:, order], p, Heads(h, h))
        values["parameters"][str(h)] = sum(matrix.size for matrix in matrices.values())
        values["equivariance"][str(h)] = float(np.abs(Z - Y[:, order]).max())
        values["unpermuted"][str(h)] = float(np.abs(Z - Y).max())
    return values


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (
            str(h),
            f"{values['parameters'][str(h)]:,}",
            f"{values['equivariance'][str(h)]:.1e}",
            f"{values['unpermuted'][str(h)]:.3f}",
        )
        for h in HEADS
    ]
    titles = ("heads", "parameters", "gap to the outputs, permuted alike", "gap to the outputs, unpermuted")
    return {"heads": Table(titles, rows)}


EXPERIMENT = Experiment(measure, tables)
