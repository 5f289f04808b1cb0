"""Softmax attention as a mixer: heads, positions, windows, its cache."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lavagna.errors import ConfigError
from lavagna.mixers import build
from lavagna.mixers.attention import Attention
from lavagna.ops.tree import nbytes

from ..support.budget import close
from ..support.mixers import mixer
from ..support.variants import WIDTH


def normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / torch.sqrt((x * x).mean() + eps)


def turned(x: Tensor, position: int, theta: float, size: int) -> Tensor:
    """Channel i with channel i + size/2, as a complex number, times e^{i·angle}."""
    half = size // 2
    angle = position * theta ** (-2 * torch.arange(half, dtype=x.dtype) / size)
    z = torch.complex(x[:half], x[half:size]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([z.real, z.imag, x[size:]])


def literal(m: Attention, x: Tensor) -> Tensor:
    """Token by token and head by head, for one row [T, D]."""
    K, share = m.head_dim, m.heads // m.kv_heads
    q = m.q_proj(x).unflatten(-1, (-1, K))
    k = m.k_proj(x).unflatten(-1, (-1, K))
    v = m.v_proj(x).unflatten(-1, (-1, K))
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(m.heads):
            g = h // share

            def ready(u: Tensor, s: int, norm: torch.nn.Module) -> Tensor:
                if hasattr(norm, "weight"):
                    u = normalised(u, norm.weight, norm.eps)
                return turned(u, s, m.rope_theta, m.turned) if m.position == "rotary" else u

            first = 0 if m.window is None else max(t - m.window + 1, 0)
            last = t if m.causal else len(x) - 1
            seen = range(first, last + 1)
            scores = [ready(q[t, h], t, m.q_norm) @ ready(k[s, g], s, m.k_norm) / math.sqrt(K) for s in seen]
            weights = torch.stack(scores).softmax(0)
            heads.append(sum(w * v[s, g] for w, s in zip(weights, seen, strict=True)))
        o = torch.cat(heads)
        if m.gate_proj is not None:
            o = o * torch.sigmoid(m.gate_proj(x[t]))
        rows.append(m.out_proj(o))
    return torch.stack(rows)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_heads": 2, "window": 3, "qkv_bias": True, "out_bias": True},
        {"kv_heads": 1, "head_dim": 6, "position": "none", "gate": True},
        {"heads": 2, "qk_norm": "rmsnorm", "norm_eps": 0.1, "rope_fraction": 0.5, "rope_theta": 3.0},
        {"causal": False},
    ],
)
def test_equals_the_formula(options: dict) -> None:
    m = mixer("attention", **options)
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    y, _ = m(x)
    for row in range(2):
        close("y", y[row], literal(m, x[row]))


def test_two_tokens_by_hand() -> None:
    m = build("attention", 1, {"heads": 1, "position": "none"}).double()
    with torch.no_grad():
        for name, value in (("q", 1.0), ("k", 2.0), ("v", 3.0), ("out", 0.5)):
            getattr(m, f"{name}_proj").weight.fill_(value)
    y, _ = m(torch.tensor([[[1.0], [2.0]]], dtype=torch.float64))
    # The second query, 2, meets keys 2 and 4: scores 4 and 8, so weights 1/(1+e⁴) and 1/(1+e⁻⁴), values 3 and 6.
    second = 0.5 * (3 / (1 + math.exp(4)) + 6 / (1 + math.exp(-4)))
    close("y", y, torch.tensor([[[1.5], [second]]], dtype=torch.float64))


def test_rotary_positions_depend_on_distance_alone() -> None:
    m = mixer("attention", window=3)
    x = torch.randn(1, 7, WIDTH, dtype=torch.float64)
    alone, _ = m(x)
    _, state = m(torch.randn(1, 100, WIDTH, dtype=torch.float64))
    later, _ = m(x, state)
    close("behind 100 others", later[:, 2:], alone[:, 2:])
    assert (later[:, :2] - alone[:, :2]).abs().max() > 1e-3


def test_cache_bytes() -> None:
    m = build("attention", 512, {"heads": 8})
    # 8192 tokens, 8 heads of 64, keys and values, 2 bytes, 4 rows; and how many each row has read, 8 bytes.
    assert m.state_bytes(8192, 4, torch.bfloat16) == 67_108_864 + 4 * 8
    # 24 such layers hold what 1.5 GiB hold; one shared head an eighth of it.
    shared = build("attention", 512, {"heads": 8, "kv_heads": 1})
    assert shared.state_bytes(8192, 4, torch.bfloat16) == 67_108_864 // 8 + 4 * 8


@pytest.mark.parametrize("window", [None, 1, 3, 9])
def test_cache_keeps_no_more_than_the_window(window: int | None) -> None:
    m = mixer("attention", window=window)
    state = m.init_state(2)
    for tokens in range(1, 8):
        _, state = m.step(torch.randn(2, WIDTH, dtype=torch.float64), state)
        assert nbytes(state) == m.state_bytes(tokens, 2, torch.float64)


def test_cache_keeps_its_dtype_under_autocast() -> None:
    m = build("attention", WIDTH)
    x = torch.randn(2, 5, WIDTH)
    whole, _ = m(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = m(x, m.init_state(2))
        assert state.keys.dtype == torch.float32
        fresh = m(x)[1]
        assert fresh.keys.dtype == torch.bfloat16
        assert m(x, fresh)[1].keys.dtype == torch.bfloat16
    assert (y - whole).abs().max() < 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "width must be a multiple of heads, got 16 and 3"),
        ({"heads": 4, "kv_heads": 3}, "heads must be a multiple of kv_heads, got 4 and 3"),
        ({"heads": 0}, "heads must be at least 1, got 0"),
        ({"head_dim": 3}, "even number of channels, got rope_fraction 1.0 of head_dim 3"),
        ({"rope_fraction": 0.3}, "even number of channels, got rope_fraction 0.3 of head_dim 4"),
        ({"rope_fraction": 0.0}, "even number of channels"),
        ({"rope_theta": 0.0}, "rope_theta must be above 0, got 0.0"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 3, "causal": False}, "window needs causal=True, got window 3 with causal=False"),
    ],
)
def test_refusals(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Attention(WIDTH, **options)


def test_unknown_names_are_refused_without_the_registry_too() -> None:
    with pytest.raises(ConfigError, match="unknown position 'rotatory'; did you mean 'rotary'"):
        Attention(WIDTH, position="rotatory")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="unknown qk_norm 'rms'"):
        Attention(WIDTH, qk_norm="rms")  # type: ignore[arg-type]


def test_without_causality_there_is_no_state() -> None:
    m = mixer("attention", causal=False)
    x = torch.randn(1, 4, WIDTH, dtype=torch.float64)
    y, state = m(x)
    assert state is None
    assert m.init_state(3) is None
    assert m.state_bytes(100) == 0
    reversed_, _ = mixer_like(m, position="none")(x.flip(1))
    same, _ = mixer_like(m, position="none")(x)
    close("order of tokens", reversed_, same.flip(1))
    assert (y - same).abs().max() > 1e-3


def mixer_like(m: Attention, **options: object) -> Attention:
    other = mixer("attention", causal=m.causal, **options)
    other.load_state_dict(m.state_dict())
    return other
