"""DeltaNet: the formula for the network of 2024 and for that of 2021."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers.deltanet import DeltaNet
from lavagna.mixers.parts.feature_maps import feature_map

from ..support.budget import close
from ..support.literal import convolved, normed, unit
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: DeltaNet, x: Tensor) -> Tensor:
    """v̄ = Sᵀk; S ← S + β k (v − v̄)ᵀ; o = Sᵀq, for one row [T, D]."""
    qkv = m.qkv_proj(x)
    qkv = qkv if m.conv is None else convolved(m.conv, qkv)
    q, k, v = (part.unflatten(-1, (m.heads, -1)) for part in qkv.split(m.sizes, -1))
    q, k = feature_map(m.feature_map, q, m.nu), feature_map(m.feature_map, k, m.nu)
    if m.qk_norm == "l2":
        q, k = unit(q) / math.sqrt(q.shape[-1]), unit(k)
    else:
        q, k = (u / (u.sum(-1, keepdim=True) + 1e-6) for u in (q, k))
    S = [torch.zeros(q.shape[-1], v.shape[-1], dtype=x.dtype) for _ in range(m.heads)]
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(m.heads):
            beta = torch.sigmoid(m.b_proj.weight[h] @ x[t])
            S[h] = S[h] + beta * torch.outer(k[t, h], v[t, h] - S[h].T @ k[t, h])
            o = S[h].T @ q[t, h]
            heads.append(o if m.norm is None else normed(m.norm, o))
        o = torch.cat(heads)
        rows.append(m.out_proj(o if m.gate_proj is None else o * F.silu(m.gate_proj(x[t]))))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["deltanet"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("deltanet", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_a_key_written_again_replaces_its_value() -> None:
    m = mixer("deltanet", heads=1, conv_taps=None, feature_map="softmax", qk_norm="sum", norm="none")
    with torch.no_grad():
        # Both tokens have the same key, all but one-hot, and β = σ(40) = 1.
        for part in m.qkv_proj.weight.split(WIDTH):
            part.zero_()
        q, k, v = m.qkv_proj.weight.split(WIDTH)
        q[0, 0] = k[0, 0] = 60.0
        v.copy_(torch.eye(WIDTH))
        m.b_proj.weight.zero_()[0, 0] = 40.0
        m.out_proj.weight.copy_(torch.eye(WIDTH))
    x = torch.randn(1, 2, WIDTH, dtype=torch.float64)
    x[..., 0] = 1.0
    y, _ = m(x)
    assert (y - x).abs().max() < 1e-5


def test_the_network_of_2021_has_no_convolution_in_its_state() -> None:
    m = mixer("deltanet", conv_taps=None, feature_map="dpfp", qk_norm="sum", norm="none")
    state = m.init_state(2)
    assert state.conv is None
    assert state.memory.shape == (2, 4, 2 * 3 * 4, 4)


def test_features_that_are_all_zero_write_nothing() -> None:
    m = mixer("deltanet", conv_taps=None, feature_map="relu", qk_norm="sum", norm="none")
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    _, state = m(x)
    with torch.no_grad():
        m.qkv_proj.weight.zero_()
    y, after = m(x, state)
    assert torch.equal(after.memory, state.memory)
    assert not y.any()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="qk_norm 'sum' needs features that are never negative, got 'identity'"):
        DeltaNet(WIDTH, qk_norm="sum")
    with pytest.raises(ConfigError, match="gate needs a norm, got norm 'none'"):
        DeltaNet(WIDTH, gate=True, norm="none")
    with pytest.raises(ConfigError, match="unknown qk_norm 'L2'; did you mean 'l2'"):
        DeltaNet(WIDTH, qk_norm="L2")  # type: ignore[arg-type]
