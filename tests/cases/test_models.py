"""Faults that people met in models of other projects: the right value of every model of ours, forward and backward."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lavagna.data import Batch
from lavagna.models import LanguageModel
from lavagna.ops.tree import named_leaves
from lavagna.training.loss import BatchLoss

from ..support.contracts import Subject, agree
from ..support.subjects import MODEL_SUBJECTS, VOCAB


def tokens_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def language_model(subject: Subject) -> LanguageModel:
    assert isinstance(subject.module, LanguageModel)
    return subject.module


each_model = pytest.mark.parametrize("model_subject", [pytest.param(s, id=s.name) for s in MODEL_SUBJECTS])


# 16. Beams ---------------------------------------------------------------------------------------------------


@each_model
def test_16_reordering_reaches_every_layer(model_subject: Subject) -> None:
    model = language_model(model_subject)
    prompts, mask = tokens_of(3, 6), torch.arange(6) < torch.tensor([[6], [4], [1]])
    with torch.no_grad():
        state = model(prompts, token_mask=mask).state
        order = torch.tensor([2, 0, 0, 1])
        beams = state.reorder(order)
        for (name, before), (_, after) in zip(named_leaves(state), named_leaves(beams), strict=True):
            assert torch.equal(after, before[order]), name
        layers = {name.split(".")[1] for name, _ in named_leaves(state) if name.startswith("layers")}
        assert layers == {str(i) for i in range(len(model.blocks))}
        following = tokens_of(4, 3, seed=1)
        logits, _ = model(following, state=beams)
        for i, row in enumerate(order.tolist()):
            alone = model(prompts[row : row + 1, : int(mask[row].sum())]).state
            expected, _ = model(following[i : i + 1], state=alone)
            agree({"beam": logits[i : i + 1]}, {"beam": expected}, 1e-12)


# 21. Documents packed for training ---------------------------------------------------------------------------


@each_model
def test_21_packed_documents_train_as_if_alone(model_subject: Subject) -> None:
    loss = BatchLoss(language_model(model_subject))
    documents = [tokens_of(1, length, seed=length) for length in (5, 1, 9)]
    pairs = [(d, d.roll(-1, 1)) for d in documents]

    def batch(tokens: Tensor, targets: Tensor, bounds: list[int]) -> Batch:
        return Batch(tokens, targets, torch.ones(tokens.shape), cu_seqlens=torch.tensor(bounds))

    parameters = dict(loss.named_parameters())

    def gradients(total: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(total, list(parameters.values()))
        return {"loss": total.detach(), **dict(zip(parameters, found, strict=True))}

    together = loss(batch(*(torch.cat(part, 1) for part in zip(*pairs, strict=True)), [0, 5, 6, 15]), None)[0]
    apart = sum(loss(batch(*pair, [0, pair[0].shape[1]]), None)[0] for pair in pairs)
    agree(gradients(together), gradients(apart))
