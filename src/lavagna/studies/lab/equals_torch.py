"""Attention from scratch beside torch's scaled_dot_product_attention, on the same draws."""

from __future__ import annotations

import numpy as np

from ...scratch import attention, causal_mask
from .experiment import Experiment, Table, Values
from .work import Work

__all__ = ["EXPERIMENT", "measure"]


def measure(work: Work) -> Values:
    import torch
    import torch.nn.functional as F

    rng = np.random.default_rng(7)
    Q, K, V = (rng.normal(size=(2, 5, 8)) for _ in range(3))
    gap = {}
    for name, mask in (("plain", None), ("causal", causal_mask(5))):
        ours, _ = attention(Q, K, V, mask)
        q, k, v = map(torch.from_numpy, (Q, K, V))
        theirs = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
        gap[name] = float(np.abs(ours - theirs.numpy()).max())
    return {"gap": gap, "torch": torch.__version__}


def tables(values: Values) -> dict[str, Table]:
    return {"gap": Table(("mask", "largest difference"), [(name, f"{gap:.1e}") for name, gap in values["gap"].items()])}


EXPERIMENT = Experiment(measure, tables)
