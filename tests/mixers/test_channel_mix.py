"""RWKV-6's channel mix."""

from __future__ import annotations

import pytest
import torch

from lavagna.errors import ConfigError
from lavagna.mixers.channel_mix import ChannelMix

from ..support.budget import close
from ..support.mixers import randomised


@pytest.mark.parametrize("hidden", [None, 5])
def test_equals_the_formula(hidden: int | None) -> None:
    m = randomised(ChannelMix(6, hidden=hidden).double())
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    y, state = m(x)
    for row in range(2):
        before = torch.zeros(6, dtype=torch.float64)
        for t in range(5):
            x_k = x[row, t] * (1 - m.mu_k) + before * m.mu_k
            x_r = x[row, t] * (1 - m.mu_r) + before * m.mu_r
            k = torch.relu(m.in_proj.weight @ x_k) ** 2
            close("y", y[row, t], torch.sigmoid(m.gate_proj.weight @ x_r) * (m.out_proj.weight @ k))
            before = x[row, t]
        assert torch.equal(state.last[row], before)


def test_sizes() -> None:
    assert ChannelMix(64).in_proj.weight.shape == (224, 64)
    with pytest.raises(ConfigError, match="channel_mix: hidden must be at least 1, got 0"):
        ChannelMix(64, hidden=0)
