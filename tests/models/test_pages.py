"""Large pages under weights: which pieces of memory are asked for, and that nothing else happens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lavagna import native
from lavagna.models import LanguageModel, LanguageModelConfig, pages
from lavagna.models.pages import GAP, PAGE, gather_pages


def test_neighbours_are_one_piece() -> None:
    far = 10 * PAGE
    places = [(0, 100), (100, 50), (150 + GAP, 10), (far, 5), (far + 2, 1), (2 * far, 7)]
    assert pages._joined(places) == [(0, 160 + GAP), (far, 5), (2 * far, 7)]
    assert pages._joined([]) == []


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []

    class Module:
        def gather_pages(self, address: int, size: int) -> None:
            found.append((address, size))

    monkeypatch.setattr(native, "available", lambda: True)
    monkeypatch.setattr(native, "module", Module)
    return found


def test_only_what_holds_a_page_is_asked_for_and_once(asked: list[tuple[int, int]]) -> None:
    large = nn.Linear(1024, 1024, bias=False)
    done = gather_pages(large)
    assert asked == [(large.weight.data_ptr(), large.weight.nbytes)]
    assert gather_pages(large, done) == done
    assert len(asked) == 1
    large.weight.data = large.weight.data.clone()
    gather_pages(large, done)
    assert len(asked) == 2
    gather_pages(nn.Linear(8, 8))
    gather_pages(nn.Linear(1024, 1024, device="meta"))
    assert len(asked) == 2


def test_a_model_keeps_its_weights_and_remembers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = LanguageModel(LanguageModelConfig(vocab_size=3000, width=256, layers="mamba"), seed=0)
    before = [(p.data_ptr(), p.detach().clone()) for p in model.parameters()]
    model.gather_pages()
    for (address, values), parameter in zip(before, model.parameters(), strict=True):
        assert parameter.data_ptr() == address
        assert torch.equal(parameter, values)
    calls: list[Any] = []
    monkeypatch.setattr(pages, "_joined", lambda places: calls.append(places) or [])
    model.gather_pages()
    assert calls == []


def test_without_the_native_part_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: False)
    layer = nn.Linear(1024, 1024)
    assert gather_pages(layer) == tuple(p.data_ptr() for p in layer.parameters())
