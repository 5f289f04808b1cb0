"""The linear layer of mixers, MLPs and heads: torch's, but for a step of generation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lavagna.mixers.parts import linear as module
from lavagna.mixers.parts.linear import Linear
from lavagna.mixers.registry import MIXERS, MLPS, build
from lavagna.models import LanguageModel, LanguageModelConfig


def test_it_is_torchs_layer() -> None:
    layer = Linear(3, 5, bias=False)
    assert isinstance(layer, nn.Linear)
    assert [(name, list(p.shape)) for name, p in layer.named_parameters()] == [("weight", [5, 3])]
    x = torch.randn(2, 7, 3)
    torch.testing.assert_close(layer(x), x @ layer.weight.mT)
    with torch.no_grad():
        torch.testing.assert_close(layer(x[:1, :1]), x[:1, :1] @ layer.weight.mT)


@pytest.mark.parametrize("name", [*MIXERS, *MLPS])
def test_every_layer_goes_through_it(name: str) -> None:
    mixer = build(name, 16, None, table=MIXERS if name in MIXERS else MLPS)
    assert {type(m) for m in mixer.modules() if isinstance(m, nn.Linear)} <= {Linear}


def test_a_step_of_a_model_asks_for_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(LanguageModelConfig(vocab_size=7, width=8, layers="mamba+attention"), seed=0)
    rows: list[int] = []

    def watched(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows.append(x.numel() // x.shape[-1])
        return nn.functional.linear(x, weight, bias)

    monkeypatch.setattr(module, "linear", watched)
    with torch.no_grad():
        model(torch.ones(1, 1, dtype=torch.int64))
    assert set(rows) == {1}
    assert len(rows) == sum(isinstance(m, nn.Linear) for m in model.modules())
