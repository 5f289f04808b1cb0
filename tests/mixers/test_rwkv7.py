"""RWKV-7's time mix: the formula, its relation to the delta rule, its initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.rwkv7 import RWKV7

from ..support.budget import close
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: RWKV7, x: Tensor) -> Tensor:
    """The paper's lines for one row [T, D]."""
    K = m.head_dim
    S = [torch.zeros(K, K, dtype=x.dtype) for _ in range(m.heads)]
    before, rows = torch.zeros_like(x[0]), []
    for x_t in x:
        x_r, x_w, x_k, x_v, x_a, x_g = (torch.lerp(x_t, before, mu) for mu in m.mu)
        r, k, v = (p(y).view(-1, K) for p, y in ((m.r_proj, x_r), (m.k_proj, x_k), (m.v_proj, x_v)))
        d = m.decay + m.decay_up.weight @ torch.tanh(m.decay_down.weight @ x_w)
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(d)).view(-1, K)
        eta = torch.sigmoid(m.rate + m.rate_up.weight @ (m.rate_down.weight @ x_a)).view(-1, K)
        gate = m.gate_up.weight @ torch.sigmoid(m.gate_down.weight @ x_g)
        kappa = F.normalize(k * m.removal, dim=-1)
        replaced = k * torch.lerp(torch.ones_like(eta), eta, m.replacement)
        heads, now = [], []
        for h in range(m.heads):
            transition = torch.diag(w[h]) - torch.outer(kappa[h] * eta[h], kappa[h])
            S[h] = transition @ S[h] + torch.outer(replaced[h], v[h])
            heads.append(S[h].T @ r[h])
            now.append((r[h] * m.bonus[h] * replaced[h]).sum() * v[h])
        # torch's GroupNorm is what the authors use
        normed = F.group_norm(
            torch.cat(heads)[None], m.heads, m.norm.weight.flatten(), m.norm.bias.flatten(), eps=m.norm.eps
        )[0]
        rows.append(m.out_proj((normed + torch.cat(now)) * gate))
        before = x_t
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["rwkv7"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("rwkv7", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_initialisation_is_the_published_one() -> None:
    m = build("rwkv7", 9, {"heads": 3})
    i = torch.arange(9.0)
    linear, zigzag = i / 8 - 0.5, torch.tensor([-1.0, 0, 1] * 3)
    close("decay", m.decay, -6 + 6 * (i / 8) ** (1 + 0.5**0.3) + 0.5 + 2.5 * zigzag, 1e-6)
    close("rate", m.rate, -0.19 + 0.3 * zigzag + 0.4 * linear, 1e-6)
    close("removal", m.removal.flatten(), 0.71 - 0.1 * linear, 1e-6)
    powers = torch.tensor([0.2, 0.9, 0.7, 0.7, 0.9, 0.2]) / 2
    close("mu", m.mu, 1 - (i / 9) ** powers[:, None], 1e-6)
    assert (m.replacement == 1.02).all()
    assert (m.bonus == -0.04).all()
    assert not m.out_proj.weight.any()
    for down, up in ((m.decay_down, m.decay_up), (m.rate_down, m.rate_up), (m.gate_down, m.gate_up)):
        assert not down.weight.any()
        gain = 0.1**2 * 32 / 9
        close("up", up.weight @ up.weight.T, gain * torch.eye(9), 1e-5)
    for projection, bound in ((m.r_proj, 0.5 / 3), (m.k_proj, 0.05 / 3), (m.v_proj, 0.5 / 3)):
        assert 0.9 * bound < projection.weight.abs().max() <= bound


@pytest.mark.parametrize(("width", "rank", "gate_rank"), [(16, 32, 32), (768, 64, 128), (2048, 128, 224)])
def test_default_ranks_are_the_authors(width: int, rank: int, gate_rank: int) -> None:
    with torch.device("meta"):
        m = build("rwkv7", width)
    assert m.decay_down.out_features == m.rate_down.out_features == rank
    assert m.gate_down.out_features == gate_rank


def test_no_channel_fades_below_the_bound_of_a_single_token() -> None:
    """exp(−e^−½) = .545: what a token can fade in one step, whatever the weights."""
    m = mixer("rwkv7")
    with torch.no_grad():
        m.rate.fill_(-1e4)  # nothing is taken out
        m.k_proj.weight.zero_()  # and nothing written
        for bias, expected in ((1e4, math.exp(-math.exp(-0.5))), (-1e4, 1.0)):
            m.decay.fill_(bias)
            state = m.init_state(1)
            memory = torch.ones_like(state.memory)
            _, after = m(torch.randn(1, 1, WIDTH, dtype=torch.float64), state._replace(memory=memory))
            close("memory", after.memory, expected * memory, 1e-14)


def test_the_first_token_sees_zeros_and_later_calls_the_token_before() -> None:
    m = mixer("rwkv7")
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    _, state = m(x)
    assert torch.equal(state.last, x[:, -1])
    given, _ = m(x, m.init_state(2))
    close("zeros", given, m(x)[0])


def test_tokens_of_zero_have_finite_gradients() -> None:
    m = mixer("rwkv7")
    x = torch.zeros(1, 3, WIDTH, dtype=torch.float64, requires_grad=True)
    y, state = m(x)
    (y.sum() + state.memory.sum()).backward()
    for tensor in (x, *m.parameters()):
        assert torch.isfinite(tensor.grad).all()


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="width must be a multiple of heads, got 16 and 3"):
        RWKV7(WIDTH, heads=3)
    with pytest.raises(ConfigError, match="gate_rank must be at least 1, got 0"):
        RWKV7(WIDTH, gate_rank=0)
