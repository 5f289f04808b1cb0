"""A head for whole sequences."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from lavagna.models import Classifier, ClassifierConfig
from tests.support.budget import close
from tests.support.models import LAYERS, make_config

POOLINGS = ("last", "mean")
Pooling = Literal["last", "mean"]


def make_classifier(layers: str, pooling: Pooling) -> Classifier:
    values = make_config(layers).model_dump(exclude={"tied"})
    return Classifier(ClassifierConfig.parse({**values, "classes": 3, "pooling": pooling}), seed=0).double()


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("pooling", POOLINGS)
def test_packed_padded_and_alone_agree(layers: str, pooling: Pooling) -> None:
    model = make_classifier(layers, pooling)
    lengths = [4, 1, 7]
    texts = [torch.randint(0, 257, (1, n)) for n in lengths]
    alone = torch.cat([model(text) for text in texts])
    packed = model(torch.cat(texts, 1), cu_seqlens=torch.tensor([0, 4, 5, 12]))
    close("packed", packed, alone)
    padded, mask = torch.zeros(3, 7, dtype=torch.int64), torch.zeros(3, 7, dtype=torch.bool)
    for row, text in enumerate(texts):
        padded[row, 7 - lengths[row] :], mask[row, 7 - lengths[row] :] = text[0], True
    close("padded left", model(padded, token_mask=mask), alone)
    right = torch.stack([row.roll(length) for row, length in zip(padded, lengths, strict=True)])
    close("padded right", model(right, token_mask=mask.flip(1)), alone)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_pooling_is_what_it_is_called(pooling: Pooling) -> None:
    model = make_classifier(LAYERS[-1], pooling)
    text = torch.randint(0, 257, (2, 6))
    hidden, _ = model.hidden(text)
    close(pooling, model(text), model.head(hidden[:, -1] if pooling == "last" else hidden.mean(1)))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_empty_sequence_has_a_hidden_state_of_zeros(pooling: Pooling) -> None:
    model = make_classifier(LAYERS[-1], pooling)
    text = torch.randint(0, 257, (1, 5))
    nothing = model.head(torch.zeros(16, dtype=torch.float64))
    close("packed", model(text, cu_seqlens=torch.tensor([0, 0, 5, 5]))[[0, 2]], nothing.expand(2, 3))
    close("padded", model(text, token_mask=torch.zeros(1, 5, dtype=torch.bool)), nothing[None])


def test_it_learns_to_tell_sequences_apart() -> None:
    """The class is the first of five tokens: nothing but the state carries it to the last."""
    model = make_classifier("gated_deltanet", "last")
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(80):
        text = torch.randint(3, 10, (32, 5), generator=generator)
        text[:, 0] = torch.randint(0, 3, (32,), generator=generator)
        loss = torch.nn.functional.cross_entropy(model(text), text[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.9
    assert sum(losses[-5:]) / 5 < 0.1
