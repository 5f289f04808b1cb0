"""GLA: the formula, the gate's temperature."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.gla import GLA

from ..support.budget import close
from ..support.literal import normed
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: GLA, x: Tensor) -> Tensor:
    """The recurrence for one row [T, D]; α as the paper writes it, σ(·)^(1/τ)."""
    K, V = m.key_dim, m.value_dim
    S = [torch.zeros(K, V, dtype=x.dtype) for _ in range(m.heads)]
    rows = []
    for x_t in x:
        q, k, v = m.q_proj(x_t).view(-1, K), m.k_proj(x_t).view(-1, K), m.v_proj(x_t).view(-1, V)
        low = m.decay_proj.down.weight @ x_t
        alpha = torch.sigmoid(m.decay_proj.up.weight @ low + m.decay_proj.up.bias) ** (1 / m.temperature)
        heads = []
        for h in range(m.heads):
            S[h] = torch.diag(alpha.view(-1, K)[h]) @ S[h] + torch.outer(k[h], v[h])
            heads.append(normed(m.norm, S[h].T @ q[h] / math.sqrt(K)))
        rows.append(m.out_proj(F.silu(m.gate_proj(x_t)) * torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["gla"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("gla", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_published_sizes() -> None:
    m = build("gla", 1024)
    assert m.init_state(1).memory.shape == (1, 4, 128, 256)  # K = D/2H, V = D/H
    assert m.decay_proj.down.weight.shape == (16, 1024)
    assert m.temperature == 16
    assert m.norm.kind == "layernorm"
    # At the start the gate's logits are near 0 and α near ½^(1/16) = .958.
    x = torch.randn(1, 64, 1024)
    alpha = torch.exp(F.logsigmoid(m.decay_proj(x)) / m.temperature)
    assert abs(alpha.mean() - 0.5 ** (1 / 16)) < 0.01


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="width must be a multiple of 2 heads, got 16 and 6"):
        GLA(WIDTH, heads=3)
    with pytest.raises(ConfigError, match="temperature must be above 0"):
        GLA(WIDTH, temperature=0.0)
