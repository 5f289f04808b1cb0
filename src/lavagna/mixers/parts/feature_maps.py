"""Feature maps φ: what linear attention puts in the place of exp(q · k), as φ(q) · φ(k)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .precision import wide

__all__ = ["NON_NEGATIVE", "FeatureMap", "feature_map", "feature_size"]

FeatureMap = Literal["elu1", "relu", "identity", "softmax", "dpfp"]

_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu1": lambda x: F.elu(x) + 1,
    "relu": F.relu,
    "identity": lambda x: x,
    "softmax": lambda x: x.softmax(-1),
}

#: maps whose features are never negative, so that sums over them can divide
NON_NEGATIVE = frozenset({"elu1", "relu", "softmax", "dpfp"})


def feature_size(name: FeatureMap, size: int, nu: int) -> int:
    """How many features a head of `size` channels gets: 2 ν size for DPFP, else as many."""
    return 2 * nu * size if name == "dpfp" else size


def feature_map(name: FeatureMap, x: Tensor, nu: int) -> Tensor:
    """Apply φ to the last dimension.

        elu1       φ(x) = elu(x) + 1                         (Katharopoulos et al. 2020, eq. 7)
        relu       φ(x) = max(x, 0)
        identity   φ(x) = x
        softmax    φ(x) = softmax(x)
        dpfp       φ(x) = (r_i · r_{i+j}) for j = 1..ν, r = relu([x, −x]), i + j cyclic
                                                             (Schlag et al. 2021)

    Args:
        name: which.
        x: [..., K].
        nu: ν of DPFP; others ignore it.

    Returns:
        [..., feature_size(name, K, nu)] in float32 (float64 if x is).
    """
    x = wide(x)
    if name != "dpfp":
        return _MAPS[name](x)
    r = torch.cat([x, -x], -1).relu()
    return torch.cat([r * r.roll(-j, -1) for j in range(1, nu + 1)], -1)
