"""RetNet: its parallel form, γ, positions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.retnet import RetNet

from ..support.budget import close
from ..support.literal import normed
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: RetNet, x: Tensor) -> Tensor:
    """Equation 5, with q and k as complex numbers turned by e^{inθ}, for one row [T, D]."""
    K, half = m.key_dim, m.key_dim // 2
    q, k = m.q_proj(x).unflatten(-1, (-1, K)), m.k_proj(x).unflatten(-1, (-1, K))
    v, gate = m.v_proj(x).unflatten(-1, (m.heads, -1)), m.gate_proj(x)
    theta = m.rope_theta ** (-torch.arange(half, dtype=x.dtype) / half)

    def score(t: int, s: int, h: int) -> Tensor:
        if m.position == "none":
            return q[t, h] @ k[s, h]
        left = torch.complex(q[t, h, :half], q[t, h, half:])
        right = torch.complex(k[s, h, :half], k[s, h, half:])
        return (left * right.conj() * torch.exp(1j * (t - s) * theta)).real.sum()

    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(m.heads):
            gamma = 1 - 2.0 ** (-5 - h)
            o = sum(gamma ** (t - s) * score(t, s, h) * v[s, h] for s in range(t + 1)) / math.sqrt(K)
            heads.append(normed(m.norm, o))
        rows.append(m.out_proj(F.silu(gate[t]) * torch.cat(heads)))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["retnet"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("retnet", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_decays_are_exact_in_every_dtype_of_the_model() -> None:
    expected = [math.log(1 - 2 ** (-5 - h)) for h in range(8)]
    m = build("retnet", 64, {"heads": 8})
    exact = torch.tensor(expected, dtype=torch.float64)
    close("float64", m.log_decay(torch.zeros(1, dtype=torch.float64)), exact, 1e-15)
    close("bfloat16", m.bfloat16().log_decay(torch.zeros(1).bfloat16()), exact.float(), 1e-6)


def test_a_write_fades_by_gamma_a_token() -> None:
    m = mixer("retnet", position="none")
    x = torch.randn(1, 1, WIDTH, dtype=torch.float64)
    _, state = m(x)
    with torch.no_grad():
        m.k_proj.weight.zero_()
    _, later = m(torch.randn(1, 10, WIDTH, dtype=torch.float64), state)
    gamma = 1 - 2.0 ** (-5 - torch.arange(4, dtype=torch.float64))
    close("memory", later.memory, gamma[:, None, None] ** 10 * state.memory)


def test_the_state_counts_tokens_where_there_are_positions() -> None:
    m = mixer("retnet")
    _, state = m(torch.randn(2, 3, WIDTH, dtype=torch.float64))
    assert state.seen.tolist() == [3, 3]
    assert mixer("retnet", position="none").init_state(2).seen is None


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="key_dim must be even for rotary positions, got 3"):
        RetNet(WIDTH, key_dim=3)
    assert RetNet(WIDTH, key_dim=3, position="none").key_dim == 3
    with pytest.raises(ConfigError, match="unknown norm 'groupnorm'"):
        RetNet(WIDTH, norm="groupnorm")  # type: ignore[arg-type]
