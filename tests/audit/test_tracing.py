"""Attention is seen however it is written, with the scale that it has."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lavagna.audit.tracing import AttentionCall, trace_attention

T, K = 11, 6


def scaled_after(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * K**-0.5).softmax(-1) @ v


def divided(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(K)).softmax(-1) @ v


def by_a_tensor(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / torch.tensor(float(K)).sqrt()).softmax(-1) @ v


def queries_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ((q * K**-0.5) @ k.mT).softmax(-1) @ v


def both(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhtk,bhsk->bhts", q * K**-0.25, K**-0.25 * k).softmax(-1) @ v


def in_place(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = torch.einsum("bhtk,bhsk->bhts", q, k)
    logits.mul_(K**-0.5)
    return torch.einsum("bhts,bhsk->bhtk", logits.softmax(-1), v)


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b, c = (x.flatten(0, 1) for x in (q, k, v))
    logits = torch.baddbmm(torch.zeros(a.shape[0], T, T), a, b.mT, beta=0, alpha=K**-0.5)
    return torch.bmm(logits.softmax(-1), c).view_as(v)


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    logits = q @ k.mT * K**-0.5 + torch.full((T, T), -torch.inf).triu(1)
    logits = torch.where(torch.ones(T, T).tril().bool(), logits, -1e9).masked_fill(torch.zeros(T, T).bool(), 0)
    return F.softmax(logits, -1, dtype=torch.float64).float() @ v


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    e = torch.exp(q @ k.mT * K**-0.5)
    return e / e.sum(-1, keepdim=True) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def fused_with_scale(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q * 0.5, k, v, scale=2 * K**-0.5)


def traced(attend: Callable[[Tensor, Tensor, Tensor], Tensor], tokens: int = T) -> list[AttentionCall]:
    projections = [nn.Linear(8, 2 * K) for _ in range(3)]
    x = torch.randn(2, tokens, 8)
    with trace_attention(x) as calls:
        attend(*(p(x).unflatten(-1, (2, K)).transpose(1, 2) for p in projections))
    return calls


WAYS = (
    scaled_after,
    divided,
    by_a_tensor,
    queries_first,
    both,
    in_place,
    folded,
    masked,
    by_hand,
    fused,
    fused_with_scale,
)


@pytest.mark.parametrize("attend", WAYS, ids=lambda attend: attend.__name__)
def test_the_scale_is_seen(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    (call,) = traced(attend)
    assert call.product is not None
    assert call.product.coefficient == pytest.approx(K**-0.5, rel=1e-6)
    assert call.product.q.shape[-2:] == (T, K)
    assert call.fused == attend.__name__.startswith("fused")


@pytest.mark.parametrize("attend", [scaled_after, folded, masked, by_hand], ids=lambda attend: attend.__name__)
def test_the_weights_are_seen_where_they_meet_the_values(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    (call,) = traced(attend)
    (use,) = call.uses
    assert use.axis == -1
    torch.testing.assert_close(use.weights.sum(-1), torch.ones(use.weights.shape[:-1]))


def test_turned_weights_are_seen_with_their_axis() -> None:
    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (k @ q.mT).softmax(-2)
        return (v.mT @ weights).mT

    (call,) = traced(turned)
    (use,) = call.uses
    assert (call.axis, use.axis) == (-2, -2)


def test_torch_multihead_attention_is_seen() -> None:
    attention = nn.MultiheadAttention(12, 2, batch_first=True)
    x = torch.randn(2, T, 12)
    for wanted in (True, False):
        with trace_attention(x) as calls:
            attention(x, x, x, need_weights=wanted)
        (call,) = calls
        assert call.product is not None
        assert call.product.coefficient == pytest.approx(6**-0.5, rel=1e-6)


def test_grouped_keys_are_repeated_as_torch_does() -> None:
    q, k = torch.randn(2, 4, T, K), torch.randn(2, 2, T, K)
    with trace_attention(torch.randn(2, T, 8)) as calls:
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    product = calls[0].product
    assert product is not None
    assert torch.equal(product.k, k.repeat_interleave(2, 1))


def test_a_softmax_over_channels_is_no_attention() -> None:
    def feature_map(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q.softmax(-1) @ (k.softmax(-1).mT @ v)

    assert traced(feature_map) == []


def test_an_attention_sink_is_left_out() -> None:
    def sink(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        logits = torch.cat([q @ k.mT, torch.zeros(2, 2, T, 1)], -1)
        return logits.softmax(-1)[..., :-1] @ v

    (call,) = traced(sink)
    assert call.weights is not None
    assert call.weights.shape[-2:] == (T, T)
    assert torch.equal(call.uses[0].weights.view_as(call.weights), call.weights)
