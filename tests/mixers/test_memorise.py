"""Every mixer can learn: a model of two layers remembers one batch of random tokens by heart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from lavagna.mixers import MIXERS
from lavagna.models import LanguageModel, LanguageModelConfig

#: options that make the default sizes small
SMALL: dict[str, dict[str, Any]] = {"mamba2": {"state_size": 16}}


@pytest.mark.parametrize("name", MIXERS)
def test_memorises_one_batch(name: str) -> None:
    config = LanguageModelConfig(
        vocab_size=11, width=32, layers=(name, name), mixers={name: SMALL[name]} if name in SMALL else {}
    )
    model = LanguageModel(config, seed=0)
    tokens = torch.randint(0, 11, (2, 13), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    for _ in range(150):
        logits = model(tokens[:, :-1]).logits
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    # The best that knows nothing of the past has about ln 11 = 2.4.
    assert loss < 0.05, f"{name}: {loss:.3f}"
