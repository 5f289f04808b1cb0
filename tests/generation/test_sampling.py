"""How the next token is chosen, against distributions computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from lavagna.errors import ConfigError, NonFiniteError
from lavagna.generation import Sampler, Sampling

LOGITS = torch.tensor([0.25, 0.1, 0.5, 0.15]).log()  # of tokens 0 to 3
DRAWS = 1500


def frequencies(draws: int = DRAWS, logits: torch.Tensor = LOGITS, **options: Any) -> list[float]:
    """How often each token is drawn: one row drawn again and again."""
    sampler = Sampler(Sampling.parse({"seed": 3, **options}), 1)
    counts = torch.zeros(len(logits))
    for _ in range(draws):
        counts[int(sampler(logits[None], [0]))] += 1
    return (counts / draws).tolist()


def by_hand(temperature: float, kept: list[int]) -> list[float]:
    """p^(1/temperature) of the kept tokens, normalised."""
    weights = [math.exp(logit / temperature) if i in kept else 0.0 for i, logit in enumerate(LOGITS.tolist())]
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize(
    ("options", "temperature", "kept"),
    [
        ({}, 1, [0, 1, 2, 3]),
        ({"temperature": 2}, 2, [0, 1, 2, 3]),
        ({"temperature": 0.5}, 0.5, [0, 1, 2, 3]),
        ({"top_k": 2}, 1, [2, 0]),
        ({"top_k": 9}, 1, [0, 1, 2, 3]),
        ({"top_p": 0.7}, 1, [2, 0]),  # .5 is less than .7, .75 reaches it
        ({"top_p": 0.5}, 1, [2]),
        ({"top_p": 0.76}, 1, [2, 0, 3]),
        ({"top_p": 1.0}, 1, [0, 1, 2, 3]),
        ({"min_p": 0.4}, 1, [2, 0]),  # at least .2
        ({"min_p": 0.0}, 1, [0, 1, 2, 3]),
        ({"min_p": 1.0}, 1, [2]),
        ({"top_k": 3, "top_p": 0.8}, 1, [2, 0]),  # of .9, .72 are needed, and .75 reach it
        ({"temperature": 0.5, "min_p": 0.2}, 0.5, [2, 0]),  # (.25/.5)² = .25, (.15/.5)² = .09
    ],
)
def test_frequencies_are_the_distribution(options: dict[str, Any], temperature: float, kept: list[int]) -> None:
    found, expected = frequencies(**options), by_hand(temperature, kept)
    for p, q in zip(found, expected, strict=True):
        assert (p == 0) == (q == 0)
        assert abs(p - q) < 4 * math.sqrt(max(q * (1 - q), 1e-12) / DRAWS)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 300}, 300),
        ({"top_p": 0.3}, 300),
        ({"top_p": 0.7, "top_k": 400}, 280),
        ({"top_p": 1.0}, 1000),
    ],
)
def test_of_equal_tokens_the_earlier_ones_are_kept(options: dict[str, Any], kept: int) -> None:
    """A thousand tokens of the same probability, exact in binary with 24 that have none."""
    logits = torch.zeros(1, 1024)
    logits[0, 1000:] = -torch.inf
    sampler = Sampler(Sampling.parse(options), 1)
    weights = sampler._filtered(logits)
    assert weights[0].nonzero().flatten().tolist() == list(range(kept))


def test_rows_keep_as_many_as_each_needs() -> None:
    logits = torch.stack([torch.zeros(600), torch.linspace(0, 60, 600)])
    kept = (Sampler(Sampling(top_p=0.9007), 2)._filtered(logits) > 0).sum(-1)
    by_sorting = [
        int((p.cumsum(0) - p < 0.9007).sum()) for p in logits.double().softmax(-1).sort(descending=True).values
    ]
    assert kept.tolist() == by_sorting


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.999, 1 - 2.0**-53])
def test_a_number_at_the_edge_draws_a_token_that_can_be(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, **options: torch.full(size, uniform, dtype=torch.float64))
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, 0.0, -math.inf]])
    expected = {0.0: 1, 0.25: 1, 0.999: 4, 1 - 2.0**-53: 4}[uniform]
    assert Sampler(Sampling(), 1)(logits, [0]).tolist() == [expected]


def test_greedy_takes_the_likeliest() -> None:
    assert frequencies(draws=5, temperature=0) == [0, 0, 1, 0]
    tie = torch.tensor([1.0, 3.0, 3.0])
    assert frequencies(draws=5, logits=tie, temperature=0) == [0, 1, 0]


def test_the_smallest_temperatures_do_not_overflow() -> None:
    assert frequencies(draws=5, temperature=1e-30) == [0, 0, 1, 0]
    assert frequencies(draws=5, logits=torch.tensor([1e38, -1e38]), temperature=1e-6) == [1, 0]


def test_a_row_draws_from_its_own_generator() -> None:
    """Row 1 of three gets what it gets alone with its seed, whoever else draws and however often."""
    logits = torch.zeros(3, 50)
    together, alone = Sampler(Sampling(seed=5), 3), Sampler(Sampling(seed=6), 1)
    drawn = []
    for step in range(6):
        rows = [0, 1, 2] if step % 2 else [1]
        drawn.append(int(together(logits[: len(rows)], rows)[rows.index(1)]))
    assert drawn == [int(alone(logits[:1], [0])) for _ in range(6)]
    assert len(set(drawn)) > 1


def test_no_rows_no_tokens() -> None:
    assert Sampler(Sampling(), 2)(torch.zeros(0, 4), []).tolist() == []


@pytest.mark.parametrize("logits", [[0.0, math.nan], [math.inf, 0.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite_are_refused(logits: list[float], temperature: float) -> None:
    with pytest.raises(NonFiniteError, match="expected finite logits to choose a token from"):
        Sampler(Sampling(temperature=temperature), 1)(torch.tensor([logits]), [0])


def test_a_token_may_be_ruled_out() -> None:
    assert frequencies(draws=20, logits=torch.tensor([0.0, -math.inf])) == [1, 0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -1}, "sampling: temperature: .*got -1"),
        ({"temperature": math.inf}, "sampling: temperature: .*got inf"),
        ({"top_k": 0}, "sampling: top_k: .*got 0"),
        ({"top_p": 0}, "sampling: top_p: .*got 0"),
        ({"top_p": 1.1}, "sampling: top_p: .*got 1.1"),
        ({"min_p": -0.1}, "sampling: min_p: .*got -0.1"),
        ({"seed": -1}, "sampling: seed: .*got -1"),
        ({"top": 1}, "unknown key of sampling 'top'"),
    ],
)
def test_values_that_cannot_be_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sampling.parse(values)
