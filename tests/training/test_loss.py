"""The loss of a batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lavagna.data import Corpus, PackedBatches, StreamBatches
from lavagna.training import loss
from lavagna.training.loss import BatchLoss, next_token_loss
from tests.support.budget import close
from tests.support.models import LAYERS, make_model


def by_hand(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    chosen = logits.gather(-1, targets[..., None])[..., 0]
    return ((logits.exp().sum(-1).log() - chosen) * weights).sum()


@pytest.mark.parametrize("at_once", [1 << 25, 5 * 11])
def test_the_weighted_sum_of_minus_log_p(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """In one piece and in pieces of five rows."""
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", at_once)
    head = nn.Linear(4, 11).double()
    hidden = torch.randn(2, 8, 4, dtype=torch.float64, requires_grad=True)
    targets, weights = torch.randint(0, 11, (2, 8)), torch.rand(2, 8)
    got, expected = next_token_loss(head, hidden, targets, weights), by_hand(head(hidden), targets, weights)
    close("loss", got, expected)
    wanted = [hidden, *head.parameters()]
    for name, a, b in zip(
        ("hidden", "weight", "bias"),
        torch.autograd.grad(got, wanted),
        torch.autograd.grad(expected, wanted),
        strict=True,
    ):
        close(name, a, b)


def test_half_precision_logits_are_widened_first() -> None:
    head, hidden = nn.Linear(4, 11).bfloat16(), torch.randn(1, 8, 4).bfloat16()
    targets = torch.randint(0, 11, (1, 8))
    got = next_token_loss(head, hidden, targets, torch.ones(1, 8))
    close("loss", got, by_hand(head(hidden).float(), targets, torch.ones(1, 8)), tolerance=1e-6)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_packed_batch_is_its_runs_one_by_one(corpus: Corpus, layers: str) -> None:
    model = make_model(layers, dtype=torch.float64)
    batch = PackedBatches(corpus, 24, 3).at(0)
    assert batch.cu_seqlens is not None
    total = torch.zeros((), dtype=torch.float64)
    for start, stop in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        run = slice(int(start), int(stop))
        total = total + by_hand(model(batch.tokens[:, run]).logits, batch.targets[:, run], batch.weights[:, run])
    close("loss", BatchLoss(model)(batch, None)[0], total)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_streamed_batch_goes_on_from_its_state(corpus: Corpus, layers: str) -> None:
    """Segments with the carried state give what each document gives when read from its beginning."""
    model = make_model(layers, dtype=torch.float64)
    batches = StreamBatches(corpus, 16, 2)
    state, carried, segments = None, [], []
    for step in range(4):
        batch = batches.at(step)
        assert batch.reset is not None
        assert batch.token_mask is not None
        before = None if state is None else state.reset(batch.reset)
        value, state = BatchLoss(model)(batch, before)
        carried.append(value.detach())
        segments.append(batch)
    for row in range(2):
        begin = 0
        for step in range(1, 5):
            if step == 4 or bool(segments[step].reset[row]):
                parts = segments[begin:step]
                text = torch.cat([s.tokens[row][s.token_mask[row]] for s in parts])[None]
                targets = torch.cat([s.targets[row][s.token_mask[row]] for s in parts])[None]
                whole = by_hand(model(text).logits, targets, torch.ones(text.shape))
                carried[begin] = carried[begin] - whole.detach()
                begin = step
    # What is left of all losses after all documents' losses were taken away.
    assert abs(float(sum(carried))) < 1e-9 * 4 * 32
