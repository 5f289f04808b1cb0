"""Mamba-2: the formula with every option, groups, the limit of its step, its initialisation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.mamba2 import Mamba2

from ..support.budget import close
from ..support.literal import convolved
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: Mamba2, x: Tensor) -> Tensor:
    """The recurrence and the norm, head by head and group by group, for one row [T, D]."""
    HV, V, G, N = m.heads, m.head_dim, m.groups, m.state_size
    E = HV * V
    projected = m.in_proj(x)
    z, u, dt = projected[:, :E], projected[:, E : 2 * E + 2 * G * N], projected[:, 2 * E + 2 * G * N :]
    u = convolved(m.conv, u)
    S = [torch.zeros(N, V, dtype=x.dtype) for _ in range(HV)]
    outputs = []
    for t in range(len(x)):
        heads = []
        for h in range(HV):
            g = h // (HV // G)  # head h uses group h // (H / G)
            x_h = u[t, h * V : (h + 1) * V]
            B = u[t, E + g * N : E + (g + 1) * N]
            C = u[t, E + G * N + g * N : E + G * N + (g + 1) * N]
            step = min(max(F.softplus(dt[t, h] + m.dt_bias[h]), m.dt_limit[0]), m.dt_limit[1])
            S[h] = torch.exp(-step * torch.exp(m.A_log[h])) * S[h] + step * torch.outer(B, x_h)
            heads.append(S[h].T @ C + m.D[h] * x_h)
        y = torch.cat(heads)
        gate = F.silu(z[t])
        y = y * gate if m.norm.gate_first else y
        groups = [part / torch.sqrt((part * part).mean() + m.norm.eps) for part in y.chunk(G)]
        y = torch.cat(groups) * m.norm.weight.flatten()
        outputs.append(m.out_proj(y if m.norm.gate_first else y * gate))
    return torch.stack(outputs)


@pytest.mark.parametrize("options", VARIANTS["mamba2"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("mamba2", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_two_groups_are_two_norms_backward_too() -> None:
    m = mixer("mamba2", head_dim=4, groups=2, state_size=3)
    y = torch.randn(1, 5, 2, 16, dtype=torch.float64, requires_grad=True)
    gate = torch.randn(1, 5, 2, 16, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(1, 5, 2, 16, dtype=torch.float64)
    together = torch.autograd.grad(m.norm(y, gate), (y, gate, m.norm.weight), upstream)
    for g in range(2):
        weight = m.norm.weight[g].detach().requires_grad_()
        part = y[:, :, g] * F.silu(gate[:, :, g])
        alone = F.rms_norm(part, (16,), weight, eps=m.norm.eps)
        gradients = torch.autograd.grad(alone, (y, gate, weight), upstream[:, :, g])
        close("dy", together[0][:, :, g], gradients[0][:, :, g])
        close("dgate", together[1][:, :, g], gradients[1][:, :, g])
        close("dweight", together[2][g], gradients[2])


@pytest.mark.parametrize("limit", [(0.0, 0.05), (0.4, 0.6), (1.5, 1.5)])
def test_the_step_is_limited_in_long_passes_and_in_single_steps(limit: tuple[float, float]) -> None:
    m = mixer("mamba2", state_size=3, head_dim=4, dt_limit=limit)
    x = torch.randn(1, 9, WIDTH, dtype=torch.float64)
    whole, final = m(x)
    state = m.init_state(1)
    for t in range(9):
        y, state = m.step(x[:, t], state)
        close("step", y, whole[:, t])
    close("state", state.memory, final.memory)
    free = mixer("mamba2", state_size=3, head_dim=4)
    free.load_state_dict(m.state_dict())
    assert (free(x)[0] - whole).abs().max() > 1e-3


def test_initialisation_is_the_published_one() -> None:
    m = build("mamba2", 2048)
    assert m.heads == 64
    assert m.head_dim == 64
    assert m.state_size == 128
    A = m.A_log.exp()
    assert 1 <= A.min() < 2.5
    assert 14 < A.max() <= 16
    dt = F.softplus(m.dt_bias)
    assert dt.min() > 0.99e-3
    assert dt.max() < 1.01e-1
    assert torch.equal(m.D, torch.ones(64))


def test_a_head_fits_any_width() -> None:
    assert [build("mamba2", width).head_dim for width in (32, 48, 24, 40, 17)] == [64, 48, 48, 40, 34]


def test_refusals() -> None:
    with pytest.raises(ConfigError, match=r"inner must be a multiple of head_dim, got 32 and 5"):
        Mamba2(WIDTH, head_dim=5)
    with pytest.raises(ConfigError, match="must be a multiple of groups, got 8 and 3"):
        Mamba2(WIDTH, head_dim=4, groups=3)
    for limit in ((0.5, 0.1), (-1.0, 1.0)):
        with pytest.raises(ConfigError, match="dt_limit must be"):
            Mamba2(WIDTH, dt_limit=limit)
