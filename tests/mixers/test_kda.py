"""KDA: the formula, its ranks and initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.kda import KDA

from ..support.budget import close
from ..support.literal import convolved, normed, unit
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: KDA, x: Tensor) -> Tensor:
    """S ← (I − β k kᵀ) Diag(α) S + β k vᵀ as matrices, for one row [T, D]."""
    K, V = m.key_dim, m.value_dim
    q, k, v = convolved(m.conv, m.qkv_proj(x)).split(m.sizes, -1)
    q, k, v = q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (-1, V))
    eye = torch.eye(K, dtype=x.dtype)
    S = [torch.zeros(K, V, dtype=x.dtype) for _ in range(m.heads)]
    rows = []
    for t in range(len(x)):
        logits = (m.decay_proj.up.weight @ (m.decay_proj.down.weight @ x[t])).view(-1, K)
        gate = torch.sigmoid(m.gate_proj.up.weight @ (m.gate_proj.down.weight @ x[t]))
        heads = []
        for h in range(m.heads):
            key, query = unit(k[t, h]), unit(q[t, h]) / math.sqrt(K)
            beta = torch.sigmoid(m.b_proj.weight[h] @ x[t])
            alpha = torch.exp(-torch.exp(m.A_log[h]) * F.softplus(logits[h] + m.dt_bias[h]))
            S[h] = (eye - beta * torch.outer(key, key)) @ torch.diag(alpha) @ S[h]
            S[h] = S[h] + beta * torch.outer(key, v[t, h])
            heads.append(normed(m.norm, S[h].T @ query))
        rows.append(m.out_proj(torch.cat(heads) * gate))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["kda"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("kda", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_ranks_and_initialisation() -> None:
    m = build("kda", 256, {"heads": 2})
    assert m.decay_proj.down.weight.shape == (128, 256)  # one head wide
    assert m.gate_proj.down.weight.shape == (128, 256)
    assert m.A_log.shape == (2,)
    assert m.dt_bias.shape == (2, 128)
    A, dt = build("kda", 256, {"heads": 64}).A_log.exp(), F.softplus(m.dt_bias)
    assert 1 <= A.min() < 2.5
    assert 14 < A.max() <= 16
    assert 0.99e-3 < dt.min() < 2e-3
    assert 0.5e-1 < dt.max() < 1.01e-1


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="kda: width must be a multiple of heads, got 16 and 3"):
        KDA(WIDTH, heads=3)
    with pytest.raises(ConfigError, match="kda: rank must be at least 1, got 0"):
        KDA(WIDTH, rank=0)
