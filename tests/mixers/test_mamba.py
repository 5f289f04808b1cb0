"""Mamba: the formula with every option, its initialisation, its ablations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.mamba import Mamba

from ..support.budget import close
from ..support.literal import convolved, normed
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: Mamba, x: Tensor) -> Tensor:
    """Algorithm 2 of the paper for one row [T, D]."""
    E, N = m.A_log.shape
    u, z = m.in_proj(x)[:, :E], m.in_proj(x)[:, E:]
    u = convolved(m.conv, u)
    h = torch.zeros(E, N, dtype=x.dtype)
    outputs = []
    for t in range(len(x)):
        dt, B, C = (m.x_proj(u[t]).split(m.sizes)) if m.x_proj is not None else (None, None, None)
        if "dt" in m.norms:
            dt = normed(m.norms["dt"], dt)
        if "B" in m.norms:
            B = normed(m.norms["B"], B)
        if "C" in m.norms:
            C = normed(m.norms["C"], C)
        step = F.softplus(m.dt_bias if m.dt_proj is None else m.dt_proj.weight @ dt + m.dt_bias)
        B = B.expand(E, N) if m.B is None else m.B
        C = C.expand(E, N) if m.C is None else m.C
        h = torch.exp(step[:, None] * -torch.exp(m.A_log)) * h + step[:, None] * B * u[t][:, None]
        y = (C * h).sum(1) + m.D * u[t]
        outputs.append(m.out_proj(y * F.silu(z[t])))
    return torch.stack(outputs)


@pytest.mark.parametrize("options", VARIANTS["mamba"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("mamba", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_initialisation_is_the_published_one() -> None:
    m = build("mamba", 512, {"state_size": 6})
    close("A", -m.A_log.exp(), -torch.arange(1.0, 7).repeat(1024, 1), 1e-6)
    dt = F.softplus(m.dt_bias)
    assert 0.99e-3 < dt.min() < 1.1e-3
    assert 0.9e-1 < dt.max() < 1.01e-1
    assert abs((dt < 1e-2).double().mean() - 0.5) < 0.05
    assert torch.equal(m.D, torch.ones(1024))
    assert m.dt_proj.weight.shape == (1024, 32)  # D/16
    assert 0.99 * 32**-0.5 < m.dt_proj.weight.abs().max() <= 32**-0.5
    assert m.conv.weight.shape == (1024, 4)


def test_rank_is_rounded_up() -> None:
    assert build("mamba", 17).dt_proj.weight.shape == (34, 2)


def test_constant_parts_are_parameters_that_the_input_does_not_reach() -> None:
    m = mixer("mamba", selective_dt=False, selective_B=False, selective_C=False)
    assert m.x_proj is None
    assert m.dt_proj is None
    # Time-invariant: without the gate and the convolution's SiLU it would be linear; its decay is the same
    # at each token, whatever came before.
    x = torch.randn(1, 6, WIDTH, dtype=torch.float64)
    _, state = m(x)
    _, nothing = m(torch.zeros(1, 6, WIDTH, dtype=torch.float64), state)
    faded = torch.exp(F.softplus(m.dt_bias)[:, None] * -m.A_log.exp()) ** 6
    tail = m.conv(torch.zeros(1, 6, 2 * WIDTH, dtype=torch.float64), state.conv, None)[0]
    written = sum(
        torch.exp(F.softplus(m.dt_bias)[:, None] * -m.A_log.exp()) ** (5 - t)
        * F.softplus(m.dt_bias)[:, None]
        * m.B
        * tail[0, t][:, None]
        for t in range(6)
    )
    close("state", nothing.ssm[0], faded * state.ssm[0] + written)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="mamba: expand must be at least 1, got 0"):
        Mamba(WIDTH, expand=0)
    with pytest.raises(ConfigError, match="mamba: conv_taps must be at least 1, got 0"):
        Mamba(WIDTH, conv_taps=0)
    with pytest.raises(ConfigError, match="mamba: norm_eps must be above 0"):
        Mamba(WIDTH, norm_eps=0.0)
