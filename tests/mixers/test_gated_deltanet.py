"""Gated DeltaNet: the formula, grouped value heads, negative eigenvalues, its initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.gated_deltanet import GatedDeltaNet

from ..support.budget import close
from ..support.literal import convolved, normed, unit
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: GatedDeltaNet, x: Tensor) -> Tensor:
    """S ← α (I − β k kᵀ) S + β k vᵀ as matrices, for one row [T, D]."""
    K, V = m.key_dim, m.value_dim
    q, k, v = convolved(m.conv, m.qkv_proj(x)).split(m.sizes, -1)
    q, k, v = q.unflatten(-1, (-1, K)), k.unflatten(-1, (-1, K)), v.unflatten(-1, (-1, V))
    eye = torch.eye(K, dtype=x.dtype)
    S = [torch.zeros(K, V, dtype=x.dtype) for _ in range(m.value_heads)]
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(m.value_heads):
            g = h // (m.value_heads // m.heads)
            key, query = unit(k[t, g]), unit(q[t, g]) / math.sqrt(K)
            beta = m.beta_max * torch.sigmoid(m.b_proj.weight[h] @ x[t])
            alpha = torch.exp(-torch.exp(m.A_log[h]) * F.softplus(m.a_proj.weight[h] @ x[t] + m.dt_bias[h]))
            S[h] = alpha * (eye - beta * torch.outer(key, key)) @ S[h] + beta * torch.outer(key, v[t, h])
            heads.append(normed(m.norm, S[h].T @ query))
        rows.append(m.out_proj(torch.cat(heads) * F.silu(m.gate_proj(x[t]))))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["gated_deltanet"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("gated_deltanet", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_negative_eigenvalues_double_beta() -> None:
    m = mixer("gated_deltanet", negative_eigenvalues=True)
    plain = mixer("gated_deltanet")
    plain.load_state_dict(m.state_dict())
    x = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    # The first write is β k vᵀ.
    close("memory", m(x)[1].memory, 2 * plain(x)[1].memory)


def test_published_sizes_and_initialisation() -> None:
    m = build("gated_deltanet", 2048, {"heads": 6})
    assert (m.key_dim, m.value_dim) == (256, 512)  # ¾ D in all keys, twice that in all values
    m = build("gated_deltanet", 256, {"heads": 64})
    A, dt = m.A_log.exp(), F.softplus(m.dt_bias)
    assert 0 < A.min() < 1.5
    assert 14 < A.max() <= 16
    assert dt.min() > 0.99e-3
    assert dt.max() < 1.01e-1
    assert m.conv.weight.shape[1] == 4


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="value_heads must be a multiple of heads, got 6 and 4"):
        GatedDeltaNet(WIDTH, value_heads=6)
    with pytest.raises(ConfigError, match="key_dim must be at least 1, got 0"):
        GatedDeltaNet(WIDTH, key_dim=0)
