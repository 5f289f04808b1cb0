"""What a model gives to each document, against a computation of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lavagna.data import BPETokenizer, ByteTokenizer, Corpus, Document, prepare
from lavagna.errors import InputError
from lavagna.evaluation import Scores, choose_pieces, framed, position_bins, score, windows_per_part
from lavagna.models import LanguageModel
from lavagna.ops.tree import nbytes
from tests.support.models import LAYERS, make_model

ALL = pytest.mark.parametrize("layers", LAYERS)
TEXTS = [
    b"a",
    b"the cat sat on the mat, the dog did not",
    b"it was a page of fixed size",
    "perché no".encode(),
    b"xy" * 30,
]


def build(folder: Path, texts: list[bytes], tokenizer: Any = None) -> Corpus:
    source = folder / "source"
    source.mkdir()
    for number, text in enumerate(texts):
        (source / f"{number:03}").write_bytes(text)
    return prepare(source, tokenizer or ByteTokenizer(), folder / "corpus")


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    return build(tmp_path, TEXTS)


def by_hand(model: LanguageModel, corpus: Corpus, context: int | None) -> list[list[tuple[int, float, int]]]:
    """For each document (position, bits, bytes) of each token and of the end: one window after the other, alone."""
    end, sizes = corpus.tokenizer.end_of_document, corpus.tokenizer.token_bytes()
    found = []
    for ids in corpus.documents():
        framed = [end, *ids.tolist(), end]
        rows = []
        step = context or len(framed)
        for start in range(0, len(framed) - 1, step):
            fed = framed[start : min(start + step, len(framed) - 1)]
            logits = model(torch.tensor([fed])).logits[0].detach().double()
            for position in range(len(fed)):
                target = framed[start + position + 1]
                p = math.exp(logits[position, target]) / logits[position].exp().sum().item()
                rows.append((position, -math.log2(p), int(sizes[target])))
        found.append(rows)
    return found


@ALL
@pytest.mark.parametrize("context", [None, 16, 7])
def test_bits_are_minus_log2_p(corpus: Corpus, layers: str, context: int | None) -> None:
    model = make_model(layers, dtype=torch.float64)
    scores = score(model, corpus, context=context, batch_size=3, chunk=10)
    expected = by_hand(model, corpus, context)
    assert scores.documents.tolist() == [0, 1, 2, 3, 4]
    assert scores.bits == pytest.approx([sum(bits for _, bits, _ in rows) for rows in expected], rel=1e-9)
    assert scores.bytes.tolist() == [len(text) for text in TEXTS]
    for document, rows in enumerate(expected):
        for i, (low, high) in enumerate(zip(scores.bins[:-1], scores.bins[1:], strict=True)):
            inside = [(bits, size) for position, bits, size in rows if low <= position < high]
            assert scores.position_bits[document, i] == pytest.approx(sum(b for b, _ in inside), rel=1e-9)
            assert scores.position_bytes[document, i] == sum(n for _, n in inside)
    total = sum(bits for rows in expected for _, bits, _ in rows)
    assert scores.bits_per_byte == pytest.approx(total / sum(map(len, TEXTS)), rel=1e-9)


@ALL
def test_positions_add_up_to_documents(corpus: Corpus, layers: str) -> None:
    scores = score(make_model(layers), corpus, context=16)
    assert scores.position_bits.sum(1) == pytest.approx(scores.bits)
    assert scores.position_bytes.sum(1).tolist() == scores.bytes.tolist()


@ALL
@pytest.mark.parametrize("context", [None, 16])
def test_neither_the_chunk_nor_the_batch_matters(corpus: Corpus, layers: str, context: int | None) -> None:
    model = make_model(layers, dtype=torch.float64, position="sinusoidal")
    first = score(model, corpus, context=context)
    for batch_size, chunk in ((1, 512), (2, 1), (4, 13), (100, 16)):
        again = score(model, corpus, context=context, batch_size=batch_size, chunk=chunk)
        assert again.position_bits == pytest.approx(first.position_bits, rel=1e-9)
        assert np.array_equal(again.position_bytes, first.position_bytes)


def test_a_large_vocabulary_is_scored_in_parts(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(dtype=torch.float64)
    whole = score(model, corpus)
    monkeypatch.setattr("lavagna.evaluation.scoring.LOGITS_AT_ONCE", 3 * 257)
    assert score(model, corpus).bits == pytest.approx(whole.bits, rel=1e-12)


def test_a_uniform_model_needs_log2_of_the_vocabulary(corpus: Corpus) -> None:
    model = make_model(tied=False)
    torch.nn.init.zeros_(model.head.get_parameter("weight"))
    scores = score(model, corpus)
    lengths = np.array([len(text) + 1 for text in TEXTS])  # the end of each document is predicted too
    assert scores.bits == pytest.approx(math.log2(257) * lengths)


def test_bytes_are_those_of_the_text_whatever_the_tokens(tmp_path: Path) -> None:
    tokenizer = BPETokenizer.train([Document("a", TEXTS[1])] * 3, vocab_size=270)
    corpus = build(tmp_path, TEXTS, tokenizer)
    scores = score(make_model(vocab_size=tokenizer.vocab_size), corpus, context=5)
    assert corpus.n_tokens < sum(map(len, TEXTS))
    assert scores.bytes.tolist() == [len(text) for text in TEXTS]


def test_a_sample_is_the_same_for_every_model_and_spread_over_the_documents(tmp_path: Path) -> None:
    corpus = build(tmp_path, [bytes([65 + n]) * 19 for n in range(40)])
    chosen = [score(make_model(layers), corpus, max_tokens=100) for layers in LAYERS[:2]]
    assert np.array_equal(chosen[0].documents, chosen[1].documents)
    assert len(chosen[0].documents) == 5  # of twenty tokens each
    assert chosen[0].documents.tolist() != [0, 1, 2, 3, 4]
    windows = score(make_model(), corpus, max_tokens=100, context=10)
    assert len(windows.documents) > 5
    assert int(windows.bytes.sum()) in range(90, 101)
    assert score(make_model(), corpus, max_tokens=10**9).documents.tolist() == list(range(40))


def test_progress_ends_at_the_total(corpus: Corpus) -> None:
    seen: list[tuple[int, int]] = []
    score(make_model(), corpus, batch_size=2, chunk=16, on_progress=lambda done, total: seen.append((done, total)))
    total = sum(len(text) + 1 for text in TEXTS)
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(seen) > 4


@pytest.mark.parametrize("layers", LAYERS[1:3])
def test_memory_does_not_grow_with_a_document(tmp_path: Path, layers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """States and activations of a document of 20 000 tokens are those of one of 200."""
    model = make_model(layers)
    hidden, peak = model.hidden, {}

    def watch(name: str) -> Callable[..., Any]:
        def watched(tokens: torch.Tensor, **keys: Any) -> Any:
            out, state = hidden(tokens, **keys)
            peak[name] = max(peak.get(name, 0), nbytes(state) + nbytes(out))
            return out, state

        return watched

    for name, length in (("short", 200), ("long", 20000)):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(model, "hidden", watch(name))
        scores = score(model, build(tmp_path / name, [b"ab" * (length // 2)]), chunk=100)
        assert scores.bytes.tolist() == [length]
    assert peak["long"] == peak["short"]


def test_the_models_mode_is_left_as_it_is(corpus: Corpus) -> None:
    model = make_model().train()
    scores: Scores = score(model, corpus, max_tokens=10)
    assert model.training
    assert np.isfinite(scores.bits).all()


def test_bins_double() -> None:
    assert position_bins(1).tolist() == [0, 8]
    assert position_bins(8).tolist() == [0, 8]
    assert position_bins(9).tolist() == [0, 8, 16]
    assert position_bins(100).tolist() == [0, 8, 16, 32, 64, 128]


@pytest.mark.parametrize("name", ["context", "batch_size", "chunk", "max_tokens"])
def test_sizes_below_one_are_refused(corpus: Corpus, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
        score(make_model(), corpus, **{name: 0})


def test_tokens_that_the_model_does_not_know_are_refused(corpus: Corpus) -> None:
    with pytest.raises(InputError, match="the model's vocabulary of 100, got a tokenizer of 257"):
        score(make_model(vocab_size=100), corpus)


def test_parts_of_a_long_document_count_as_documents(tmp_path: Path) -> None:
    corpus = build(tmp_path, [b"ab" * 50, b"the cat"])
    model = make_model(dtype=torch.float64)
    whole, parts = (score(model, corpus, context=10, part=part) for part in (None, 4))
    assert parts.documents.tolist() == [0, 0, 0, 1]  # of 40, 40, 21 and 8 tokens
    assert parts.bytes.tolist() == [40, 40, 20, 7]
    assert [parts.bits[:3].sum(), parts.bits[3]] == pytest.approx(whole.bits.tolist(), rel=1e-12)
    pieces, rows = choose_pieces(corpus, context=10, part=4)
    assert rows.tolist() == parts.documents.tolist()
    assert sorted(zip(pieces.document.tolist(), pieces.start.tolist(), strict=True)) == [
        *((0, start) for start in range(0, 101, 10)),
        (1, 0),
    ]
    assert framed(corpus, 1, 0, 8).tolist() == [256, *b"the cat", 256]
    assert framed(corpus, 1, 3, 2).tolist() == list(b"e c")


def test_few_documents_are_cut_into_about_forty_parts(tmp_path: Path) -> None:
    for name, texts, expected in (("one", [b"a" * 799], 2), ("few", [b"a" * 99] * 19, 5), ("many", [b"a"] * 20, None)):
        (tmp_path / name).mkdir()
        assert windows_per_part(build(tmp_path / name, texts), 10) == expected
