"""Heads are found where their projections have names that people use, and permuted with all that is theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lavagna.audit.adapters import adapt
from lavagna.audit.checks.heads import heads_stitched
from lavagna.audit.finding import NotApplicable
from lavagna.audit.subject import Subject

D, H, K = 16, 4, 4


def worst(model: nn.Module) -> float:
    """The most that permuting heads changes."""
    torch.manual_seed(0)
    return max(m.value for m in heads_stitched(Subject.of(adapt(model, width=D))))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class Torch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]


class Fused(nn.Module):
    """One projection; each head's queries, keys and values together, or all queries first."""

    def __init__(self, by_head: bool, wrong: bool = False) -> None:
        super().__init__()
        self.n_head = H
        self.qkv = nn.Linear(D, 3 * D)
        self.proj = nn.Linear(D, D)
        self.by_head = by_head
        self.wrong = wrong

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.shape
        made = self.qkv(x)
        if self.by_head:
            q, k, v = made.view(B, T, H, 3 * K).transpose(1, 2).chunk(3, -1)
        else:
            q, k, v = (t.view(B, T, H, K).transpose(1, 2) for t in made.chunk(3, -1))
        o = attend(q, k, v)
        if self.wrong:
            o = o.unflatten(-1, (H, K)).transpose(-1, -2).flatten(-2) if T > 2 else o
        return self.proj(o)


class Separate(nn.Module):
    """Three projections and, by options, what some models have beside them."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        self.num_heads = H
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(D, D))
        self.parts = parts
        if "norm" in parts:
            self.q_norm, self.k_norm = nn.RMSNorm(parts["norm"]), nn.RMSNorm(parts["norm"])
        if "sink" in parts:
            self.sinks = nn.Parameter(torch.randn(H))
        if "table" in parts:
            self.register_buffer("frequencies", torch.arange(1.0, H + 1))
        if "mixed" in parts:
            self.talking = nn.Linear(H, H)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        if self.parts.get("norm") == D:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (t.unflatten(-1, (H, K)).transpose(1, 2) for t in (q, k, v))
        if self.parts.get("norm") == K:
            q, k = self.q_norm(q), self.k_norm(k)
        if "table" in self.parts:
            q = q * torch.cos(self.frequencies)
        logits = q @ k.mT * K**-0.5
        if "slopes" in self.parts:
            place = torch.arange(x.shape[1])
            logits = logits - torch.arange(1, H + 1)[:, None, None] * (place[:, None] - place).abs()
        if "mixed" in self.parts:
            logits = self.talking(logits.transpose(1, 3)).transpose(1, 3)
        logits = logits.masked_fill(torch.ones_like(logits).triu(1).bool(), -torch.inf)
        if "sink" in self.parts:
            sinks = self.sinks[:, None, None].expand(x.shape[0], H, x.shape[1], 1)
            weights = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        else:
            weights = logits.softmax(-1)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    "model",
    [
        Torch(),
        Fused(by_head=False),
        Fused(by_head=True),
        Separate(),
        Separate(norm=D),
        Separate(norm=K),
        Separate(sink=True),
        Separate(table=True),
    ],
    ids=["torch", "fused", "fused by head", "separate", "norm of all", "norm of one", "sinks", "a table as long"],
)
def test_sound_heads_can_be_permuted(model: nn.Module) -> None:
    assert worst(model) < 1e-9


@pytest.mark.parametrize("by_head", [False, True])
def test_heads_joined_channel_by_channel_are_seen(by_head: bool) -> None:
    assert worst(Fused(by_head, wrong=True)) > 1e-3


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Separate(slopes=True), "biases of their own"),
        (Separate(mixed=True), "not known by name"),
        (nn.Linear(D, D), "no softmax over tokens was seen"),
    ],
)
def test_what_cannot_be_permuted_is_not_judged(model: nn.Module, reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        worst(model)


def test_the_weights_come_back() -> None:
    subject = Subject.of(adapt(Fused(by_head=True, wrong=True), width=D))
    before = {name: p.detach().clone() for name, p in subject.parameters.items()}
    list(heads_stitched(subject))
    for name, parameter in subject.parameters.items():
        assert torch.equal(parameter, before[name]), name
