"""S4D: the formula, complex and real; S4D-Lin's initialisation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.s4d import S4D

from ..support.budget import close
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: S4D, x: Tensor) -> Tensor:
    """The zero-order hold and the recurrence for one row [T, D]."""
    dt = torch.exp(m.log_dt)[:, None]
    A, C = -torch.exp(m.A_log_real), m.C
    if not m.real:
        A, C = torch.complex(A, m.A_imag), torch.complex(m.C[..., 0], m.C[..., 1])
    A_bar = torch.exp(dt * A)
    B_bar = (A_bar - 1) / A
    h = torch.zeros_like(A)
    rows = []
    for x_t in x:
        h = A_bar * h + B_bar * x_t[:, None]
        total = (C * h).sum(1)
        y = (total if m.real else 2 * total.real) + m.D * x_t
        a, b = m.out_proj(F.gelu(y)).chunk(2)
        rows.append(a * torch.sigmoid(b))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["s4d"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("s4d", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_a_conjugate_pair_is_a_damped_oscillation() -> None:
    m = mixer("s4d", state_size=2)
    with torch.no_grad():
        m.log_dt.zero_()
        m.A_log_real.fill_(math.log(0.1))
        m.A_imag.fill_(math.pi / 3)
        m.C.copy_(torch.tensor([1.0, 0.0]))
        m.D.zero_()
    impulse = torch.zeros(1, 7, WIDTH, dtype=torch.float64)
    impulse[:, 0] = 1
    _, state = m(impulse)
    # Six tokens later the phase is 6 · π/3, a full turn, and the size e^{−.6} of what was written.
    A = complex(-0.1, math.pi / 3)
    written = (torch.exp(torch.tensor(A)) - 1) / A
    expected = (math.exp(-0.6) * written).to(torch.complex128)
    assert (state.ssm - expected).abs().max() < 1e-6


def test_initialisation_is_s4d_lin() -> None:
    m = build("s4d", 512)
    n = torch.arange(32.0)
    close("Re A", -m.A_log_real.exp(), torch.full((512, 32), -0.5), 1e-6)
    close("Im A", m.A_imag, (math.pi * n).repeat(512, 1), 1e-6)
    assert m.log_dt.exp().min() >= 0.999e-3
    assert m.log_dt.exp().max() <= 1.001e-1
    assert abs((m.log_dt.exp() < 1e-2).double().mean() - 0.5) < 0.07
    assert abs(m.C.square().sum(-1).mean() - 1) < 0.05
    real = build("s4d", 4, {"real": True, "state_size": 3})
    close("real A", -real.A_log_real.exp(), torch.tensor([-1.0, -2.0, -3.0]).repeat(4, 1), 1e-6)


def test_the_state_is_complex_unless_real() -> None:
    assert build("s4d", 8).init_state(3).ssm.dtype == torch.complex64
    assert build("s4d", 8).double().init_state(3).ssm.dtype == torch.complex128
    real = build("s4d", 8, {"real": True})
    assert real.init_state(3).ssm.dtype == torch.float32
    assert real.init_state(3).ssm.shape == (3, 8, 64)
    assert real.state_bytes(1) == build("s4d", 8).state_bytes(1) == 8 * 64 * 4


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="state_size must be even unless real, got 5"):
        S4D(WIDTH, state_size=5)
