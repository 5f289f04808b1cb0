"""RWKV-6's time mix: the formula, the data-dependent shift, its initialisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.rwkv6 import RWKV6

from ..support.budget import close
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: RWKV6, x: Tensor) -> Tensor:
    """The paper's lines for one row [T, D]."""
    K, R = m.head_dim, m.shift_up.shape[1]
    S = [torch.zeros(K, K, dtype=x.dtype) for _ in range(m.heads)]
    before, rows = torch.zeros_like(x[0]), []

    def mixed(i: int, x_t: Tensor, step: Tensor) -> Tensor:
        A = m.shift_down.weight[i * R : (i + 1) * R]
        lora = m.mu[i] + torch.tanh(A @ (x_t + step * m.mu_x)) @ m.shift_up[i]
        return x_t + step * lora

    for x_t in x:
        x_w, x_k, x_v, x_r, x_g = (mixed(i, x_t, before - x_t) for i in range(5))
        r, k, v = (p(y).view(-1, K) for p, y in ((m.r_proj, x_r), (m.k_proj, x_k), (m.v_proj, x_v)))
        w = torch.exp(-torch.exp(m.decay + m.decay_up.weight @ torch.tanh(m.decay_down.weight @ x_w)))
        heads = []
        for h in range(m.heads):
            o = (S[h] + torch.outer(m.bonus[h] * k[h], v[h])).T @ r[h]
            S[h] = torch.diag(w.view(-1, K)[h]) @ S[h] + torch.outer(k[h], v[h])
            heads.append(o)
        # torch's GroupNorm is what the authors use
        normed = F.group_norm(
            torch.cat(heads)[None], m.heads, m.norm.weight.flatten(), m.norm.bias.flatten(), eps=m.norm.eps
        )[0]
        rows.append(m.out_proj(normed * F.silu(m.gate_proj(x_g))))
        before = x_t
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["rwkv6"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("rwkv6", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_initialisation_is_the_published_one() -> None:
    m = build("rwkv6", 9, {"heads": 3})
    i = torch.arange(9.0)
    close("decay", m.decay, -6 + 5 * (i / 8) ** 1.35, 1e-6)
    zigzag = torch.tensor([0.0, 0.1, -0.1] * 3)
    close("bonus", m.bonus.flatten(), 0.5 * (1 - i / 8) + zigzag, 1e-6)
    half, quarter = 1 - (i / 9) ** 0.5, 1 - (i / 9) ** 0.25
    close("mu", m.mu, torch.stack([half, half, half - 0.15, quarter, quarter]), 1e-6)
    close("mu_x", m.mu_x, half, 1e-6)
    assert not m.shift_down.weight.any()
    assert not m.decay_down.weight.any()
    for up in (m.shift_up, m.decay_up.weight):
        assert 0.009 < up.abs().max() <= 0.01
    assert m.shift_up.shape == (5, 32, 9)
    assert m.decay_up.weight.shape == (9, 64)


def test_the_first_token_sees_zeros_and_later_calls_the_token_before() -> None:
    m = mixer("rwkv6")
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    _, state = m(x)
    assert torch.equal(state.last, x[:, -1])
    given, _ = m(x, m.init_state(2))
    close("zeros", given, m(x)[0])


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="width must be a multiple of heads, got 16 and 3"):
        RWKV6(WIDTH, heads=3)
