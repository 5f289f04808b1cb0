"""The contracts, for whole models: of each mixer, hybrids, and every way of putting blocks together.

Most are in tests/support/conformance, since mixers keep them too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lavagna.errors import StateError
from lavagna.models import LanguageModel, ModelState
from lavagna.ops.tree import named_leaves

from ..support.conformance import *  # noqa: F403
from ..support.conformance import binds, parametrize
from ..support.contracts import ROWS, Subject, agree, random, read_state, values
from ..support.memory import Peak
from ..support.subjects import MODEL_SUBJECTS, VOCAB


def is_representative(subject: Subject) -> bool:
    """A model of every state there is."""
    return subject.name in ("hybrid", "hybrid of three", "channel mix")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, MODEL_SUBJECTS, is_representative)


def tokens_of(*shape: int) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(sum(shape)))


def language_model(subject: Subject) -> LanguageModel:
    assert isinstance(subject.module, LanguageModel)
    return subject.module


# Tokens ----------------------------------------------------------------------------------------------------


@binds(subset=True)
def test_every_parameter_matters(subject: Subject) -> None:
    model = language_model(subject)
    parameters = dict(model.named_parameters())
    logits, _ = model(tokens_of(ROWS, 20))
    found = torch.autograd.grad(logits.square().sum(), list(parameters.values()), allow_unused=True)
    without = [n for n, g in zip(parameters, found, strict=True) if g is None or g.abs().max() < 1e-9]
    assert without == []


@binds(representatives=True)
def test_tokens_are_their_embeddings(subject: Subject) -> None:
    model, tokens = language_model(subject), tokens_of(ROWS, 9)
    agree(values(*model(tokens)), values(*model(inputs_embeds=model.embedding(tokens))), 1e-14)
    agree(values(*model(tokens.int())), values(*model(tokens)), 0)


@binds(representatives=True)
def test_the_token_at_padding_does_not_matter(subject: Subject) -> None:
    model, tokens = language_model(subject), tokens_of(ROWS, 9)
    mask = torch.arange(9) >= torch.tensor([[4], [0]])
    answers = []
    for token in (0, VOCAB - 1):
        logits, state = model(tokens.masked_fill(~mask, token), token_mask=mask)
        (gradient,) = torch.autograd.grad(logits.square().sum(), model.embedding.weight)
        answers.append(values(logits, state) | {"gradient of the embedding": gradient})
    agree(answers[1], answers[0], 0)


@binds(representatives=True)
def test_hidden_states_are_what_the_head_reads(subject: Subject) -> None:
    model, tokens = language_model(subject), tokens_of(ROWS, 9)
    hidden, state = model.hidden(tokens)
    agree(values(model.head(hidden), state), values(*model(tokens)), 0)


# State -----------------------------------------------------------------------------------------------------


def test_a_saved_state_is_the_same(subject: Subject, tmp_path: Path) -> None:
    model, state = language_model(subject), read_state(subject, 3)
    state.save(tmp_path / "state", model)
    loaded = ModelState.load(tmp_path / "state", model)
    x = random(3, 4, subject.width)
    assert [name for name, _ in named_leaves(loaded)] == [name for name, _ in named_leaves(state)]
    with torch.no_grad():
        agree(values(*subject(x, loaded)), values(*subject(x, state)), 0)


def test_a_saved_model_is_the_same(subject: Subject, tmp_path: Path) -> None:
    model, tokens = language_model(subject), tokens_of(ROWS, 9)
    model.save(tmp_path / "model")
    with torch.no_grad():
        agree(values(*LanguageModel.load(tmp_path / "model")(tokens)), values(*model(tokens)), 0)


def test_a_state_of_another_model_is_refused(subject: Subject) -> None:
    others = {"retnet", "linear_attention", "sinusoidal positions", "hybrid of three"} - {subject.name}
    for maker in (s for s in MODEL_SUBJECTS if s.name in others):
        with pytest.raises(StateError, match="state must"):
            subject(random(2, 3, subject.width), maker.module.init_state(2))


# Memory ----------------------------------------------------------------------------------------------------


def peak_of_reading(subject: Subject, tokens: int, chunk: int = 500) -> int:
    """Bytes of tensors at most, while a document of so many tokens is read chunk by chunk."""
    document, state, logits = tokens_of(1, tokens), None, None
    with torch.inference_mode(), Peak() as peak:
        for part in document.split(chunk, 1):
            logits = None  # the last chunk's are read by now
            logits, state = language_model(subject)(part, state=state)
    assert logits is not None
    return peak.bytes


@binds("constant memory")
def test_a_long_document_is_read_in_the_memory_of_a_short_one(subject: Subject) -> None:
    assert peak_of_reading(subject, 5_000) == peak_of_reading(subject, 1_000)
