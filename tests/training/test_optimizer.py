"""What is decayed, and the learning rate at each step."""

from __future__ import annotations

import math
import re

import pytest
import torch

from lavagna.mixers.registry import MIXERS, MLPS, build
from lavagna.models import LanguageModel
from lavagna.training import TrainingConfig, learning_rate, make_optimizer, parameter_groups
from tests.support.models import make_config

#: matrices that project channels, in mixers and MLPs; everything else is a decay, a bias, a norm or a filter
PROJECTION = re.compile(r"(_proj|down|up)\.weight$")


@pytest.mark.parametrize("name", [*MIXERS, *MLPS])
def test_of_a_layer_all_projections_and_nothing_else_are_decayed(name: str) -> None:
    decayed, others = parameter_groups(build(name, 32) if name in MIXERS else build(name, 32, table=MLPS))
    assert decayed
    assert [parameter for parameter in decayed if not PROJECTION.search(parameter)] == []
    assert [parameter for parameter in others if PROJECTION.search(parameter)] == []


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_and_norms_are_not_decayed_and_each_parameter_counts_once(tied: bool) -> None:
    model = LanguageModel(make_config(tied=tied, position="learned", max_positions=8), seed=0)
    decayed, others = parameter_groups(model)
    assert len(decayed) + len(others) == len(list(model.parameters()))
    assert {"embedding.weight", "final_norm.weight", "positions"} <= others.keys()
    assert ("head.weight" in decayed) == (not tied)


def test_frozen_parameters_are_left_out() -> None:
    model = LanguageModel(make_config(), seed=0)
    model.embedding.weight.requires_grad_(False)
    decayed, others = parameter_groups(model)
    assert "embedding.weight" not in decayed.keys() | others.keys()


def test_decay_pulls_the_decayed_group_alone() -> None:
    """Without a gradient a step is w ← w − rate · decay · w, or nothing."""
    model = LanguageModel(make_config(), seed=0)
    config = TrainingConfig(learning_rate=0.5, weight_decay=0.2)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    make_optimizer(model, config).step()
    decayed, _ = parameter_groups(model)
    for name, parameter in model.named_parameters():
        factor = 0.9 if name in decayed else 1.0
        torch.testing.assert_close(parameter.detach(), factor * before[name])


def rates(steps: int, **keys: object) -> list[float]:
    config = TrainingConfig.parse({"steps": steps, "learning_rate": 2.0, **keys})
    return [learning_rate(step, config) for step in range(steps)]


def test_cosine_by_hand() -> None:
    """Two of ten steps rise to 2; eight fall on half a cosine to a tenth of it, reached at the last one."""
    expected = [1.0, 2.0]
    expected += [2 * (0.1 + 0.9 * (1 + math.cos(math.pi * n / 8)) / 2) for n in range(1, 9)]
    assert rates(10, warmup=0.2, final_rate=0.1) == pytest.approx(expected)
    assert rates(10, warmup=0.2, final_rate=0.1)[-1] == pytest.approx(0.2)


def test_wsd_by_hand() -> None:
    """Two of ten steps rise, four stay, four fall in a line to nothing."""
    expected = [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5, 0.0]
    assert rates(10, schedule="wsd", warmup=0.2, decay=0.4, final_rate=0) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"warmup": 0}, [1.1, 0.2]),
        ({"warmup": 1}, [1.0, 2.0]),
        ({"schedule": "wsd", "warmup": 0, "decay": 0}, [2.0, 2.0]),
        ({"schedule": "wsd", "warmup": 0, "decay": 1}, [1.1, 0.2]),
    ],
)
def test_phases_may_be_empty_or_all_there_is(keys: dict[str, object], expected: list[float]) -> None:
    assert rates(2, final_rate=0.1, **keys) == pytest.approx(expected)
