"""Linear attention: its quadratic form, the normaliser in the state, feature maps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers.linear_attention import LinearAttention
from lavagna.mixers.parts.feature_maps import feature_map

from ..support.budget import close
from ..support.literal import normed
from ..support.mixers import mixer
from ..support.variants import VARIANTS, WIDTH


def literal(m: LinearAttention, x: Tensor) -> Tensor:
    """Equation 9 of Katharopoulos et al.: weights φ(q)·φ(k), for one row [T, D]."""
    heads = (m.heads, m.head_dim)
    q = feature_map(m.feature_map, m.q_proj(x).unflatten(-1, heads), m.nu)
    k = feature_map(m.feature_map, m.k_proj(x).unflatten(-1, heads), m.nu)
    v = m.v_proj(x).unflatten(-1, heads)
    rows = []
    for t in range(len(x)):
        outputs = []
        for h in range(m.heads):
            weights = torch.stack([q[t, h] @ k[s, h] for s in range(t + 1)])
            o = weights @ v[: t + 1, h]
            if m.normalizer:
                o = o / (weights.sum() + 1e-10)
            outputs.append(o if m.norm is None else normed(m.norm, o))
        rows.append(m.out_proj(torch.cat(outputs)))
    return torch.stack(rows)


@pytest.mark.parametrize("options", VARIANTS["linear_attention"])
def test_equals_the_formula(options: dict[str, Any]) -> None:
    m = mixer("linear_attention", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_equal_keys_average_the_values() -> None:
    m = mixer("linear_attention", heads=1)
    with torch.no_grad():
        m.k_proj.weight.zero_()
        m.v_proj.weight.copy_(torch.eye(WIDTH))
        m.out_proj.weight.copy_(torch.eye(WIDTH))
    x = torch.randn(1, 3, WIDTH, dtype=torch.float64)
    y, state = m(x)
    close("y", y, x.cumsum(1) / torch.tensor([1.0, 2, 3], dtype=torch.float64)[:, None])
    close("z", state.normalizer, torch.full((1, 1, WIDTH), 3.0, dtype=torch.float64))


def test_the_normaliser_is_part_of_the_state_only_where_there_is_one() -> None:
    assert mixer("linear_attention").init_state(2).normalizer.shape == (2, 4, 4)
    assert mixer("linear_attention", normalizer=False).init_state(2).normalizer is None
    dpfp = mixer("linear_attention", feature_map="dpfp", nu=3)
    assert dpfp.init_state(2).memory.shape == (2, 4, 2 * 3 * 4, 4)


def test_a_gradient_passes_through_the_normaliser() -> None:
    m = mixer("linear_attention", heads=2, head_dim=2)

    def run(x: Tensor) -> Tensor:
        return m(x)[0]

    x = torch.randn(1, 4, WIDTH, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(run, (x,), atol=1e-8)


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="normalizer needs features that are never negative, got 'identity'"):
        LinearAttention(WIDTH, feature_map="identity")
    with pytest.raises(ConfigError, match="unknown feature_map 'soft'; did you mean 'softmax'"):
        LinearAttention(WIDTH, feature_map="soft")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown norm 'rms'"):
        LinearAttention(WIDTH, norm="rms")  # type: ignore[arg-type]
