"""Batches hold every document exactly, mix none with its neighbour, and depend on seed and step alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from lavagna.data import Batch, Corpus, PackedBatches, StreamBatches
from lavagna.errors import DataError, InputError

from .conftest import write_corpus

CorpusOf = Callable[[Sequence[bytes]], Corpus]
Kind = type[PackedBatches] | type[StreamBatches]
END = 256
BOTH = pytest.mark.parametrize("kind", [PackedBatches, StreamBatches])

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
contexts = st.integers(1, 17)
sizes = st.integers(1, 4)
seeds = st.integers(0, 2)


def texts(lengths: Sequence[int]) -> list[bytes]:
    """Documents whose neighbouring tokens differ, between documents too."""
    return [bytes(1 + (37 * n + i) % 255 for i in range(length)) for n, length in enumerate(lengths)]


def asked(text: bytes) -> list[int]:
    return [*text, END]


def split_at_ends(stream: list[int]) -> list[bytes]:
    """Cut [E, t_1, …, E, t_1, …] into the documents that begin in it."""
    begins = [i for i, token in enumerate(stream) if token == END]
    return [bytes(stream[a + 1 : b]) for a, b in zip(begins, [*begins[1:], len(stream)], strict=True)]


def equal(one: Batch, other: Batch) -> bool:
    return all(
        (a is b is None) or (isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b))
        for a, b in zip(one, other, strict=True)
    )


def test_one_document_in_one_row(corpus_of: CorpusOf) -> None:
    batch = PackedBatches(corpus_of([b"\1\2\3\4"]), context=5, batch_size=1).at(0)
    assert batch.tokens.tolist() == [[END, 1, 2, 3, 4]]
    assert batch.targets.tolist() == [[1, 2, 3, 4, END]]
    assert batch.weights.tolist() == [[1, 1, 1, 1, 1]]
    assert batch.cu_seqlens is not None
    assert batch.cu_seqlens.tolist() == [0, 5]
    assert [batch.token_mask, batch.reset] == [None, None]
    assert (batch.tokens.dtype, batch.targets.dtype) == (torch.int64, torch.int64)
    assert (batch.weights.dtype, batch.cu_seqlens.dtype) == (torch.float32, torch.int64)


def test_two_documents_over_two_rows(corpus_of: CorpusOf) -> None:
    batches = PackedBatches(corpus_of([b"\1\2\3", b"\7\7\7"]), context=4, batch_size=2)
    batch = batches.at(0)
    assert sorted(batch.tokens.reshape(2, 4).tolist()) == [[END, 1, 2, 3], [END, 7, 7, 7]]
    assert sorted(batch.targets.reshape(2, 4).tolist()) == [[1, 2, 3, END], [7, 7, 7, END]]
    assert batch.cu_seqlens is not None
    assert batch.cu_seqlens.tolist() == [0, 4, 8]
    assert batches.steps_per_epoch == 1


@given(lengths=lengths, context=contexts, batch_size=sizes, seed=seeds)
def test_packed_batches_hold_every_document_and_cross_no_boundary(
    lengths: list[int], context: int, batch_size: int, seed: int
) -> None:
    epoch = sum(lengths) + len(lengths)
    assume(epoch >= context)
    with TemporaryDirectory() as folder:
        documents = texts(lengths)
        batches = PackedBatches(write_corpus(Path(folder), documents), context, batch_size, seed)
        block = epoch // context
        tokens: dict[int, list[int]] = {}
        targets: dict[int, list[int]] = {}
        for step in range(-(-2 * block // batch_size)):
            batch = batches.at(step)
            assert batch.tokens.shape == batch.targets.shape == batch.weights.shape == (1, batch_size * context)
            assert batch.cu_seqlens is not None
            inputs, wanted, runs = batch.tokens[0].tolist(), batch.targets[0].tolist(), batch.cu_seqlens.tolist()
            begins = {i for i, token in enumerate(inputs) if token == END}
            assert runs == sorted({*begins, *range(0, len(inputs) + 1, context)})
            for start, stop in pairwise(runs):
                assert wanted[start : stop - 1] == inputs[start + 1 : stop]
            for n, row in enumerate(batches.rows(step)):
                assert row not in tokens
                tokens[row] = inputs[n * context : (n + 1) * context]
                targets[row] = wanted[n * context : (n + 1) * context]
        rows = range(2 * block)  # an epoch at least
        assert set(rows) <= set(tokens)
        stream = [token for row in rows for token in tokens[row]][:epoch]
        assert sorted(split_at_ends(stream)) == sorted(documents)
        after = [token for text in split_at_ends(stream) for token in asked(text)]
        assert [token for row in rows for token in targets[row]][:epoch] == after


@given(lengths=lengths, context=contexts, batch_size=sizes, seed=seeds)
def test_streams_continue_and_hold_every_document(lengths: list[int], context: int, batch_size: int, seed: int) -> None:
    assume(sum(lengths) + len(lengths) >= context)
    with TemporaryDirectory() as folder:
        documents = texts(lengths)
        batches = StreamBatches(write_corpus(Path(folder), documents), context, batch_size, seed)
        segments = sum(-(-(length + 1) // context) for length in lengths)
        span = batches.steps_per_epoch
        assert span == -(-segments // batch_size)
        epoch = [batches.at(step) for step in range(span)]
        for batch in epoch:
            assert batch.cu_seqlens is None
            assert batch.token_mask is not None
            assert batch.tokens.shape == batch.token_mask.shape == (batch_size, context)
            assert torch.equal(batch.weights, batch.token_mask.float())
            assert batch.token_mask[:, 0].all()  # no row is padding only
            assert (batch.token_mask.int().diff(dim=1) <= 0).all()  # padding comes last
            assert not (batch.tokens[:, 1:] == END)[batch.token_mask[:, 1:]].any()
        line = []
        for row in range(batch_size):
            for step, batch in enumerate(epoch):
                assert batch.token_mask is not None
                assert batch.reset is not None
                real = batch.token_mask[row]
                inputs, wanted = batch.tokens[row][real].tolist(), batch.targets[row][real].tolist()
                assert wanted[:-1] == inputs[1:]
                begins = inputs[0] == END
                assert bool(batch.reset[row]) == (begins or step == 0)
                if step and not begins:
                    assert line[-1][1][-1] == inputs[0]  # what the last step asked for is fed now
                    assert len(line[-1][0]) == context
                line.append((inputs, wanted))
        assert line[segments:] == line[: len(line) - segments]
        stream = [token for inputs, _ in line[:segments] for token in inputs]
        found = split_at_ends(stream)
        assert sorted(found) == sorted(documents)
        assert [token for _, wanted in line[:segments] for token in wanted] == [t for d in found for t in asked(d)]


def test_a_long_document_in_two_streams(corpus_of: CorpusOf) -> None:
    batches = StreamBatches(corpus_of([b"\1\2\3\4\5\6\7\x08\x09"]), context=3, batch_size=2)
    first, second, third = (batches.at(step) for step in range(3))
    assert first.tokens.tolist() == [[END, 1, 2], [6, 7, 8]]
    assert second.tokens.tolist() == [[3, 4, 5], [9, END, END]]
    assert second.targets.tolist() == [[4, 5, 6], [END, END, END]]
    assert second.token_mask is not None
    assert second.token_mask.tolist() == [[True] * 3, [True, False, False]]
    assert [batch.reset.tolist() for batch in (first, second, third) if batch.reset is not None] == [
        [True, True],
        [False, False],
        [True, True],
    ]


@BOTH
def test_a_batch_depends_on_seed_and_step_alone(kind: Kind, corpus_of: CorpusOf) -> None:
    corpus = corpus_of(texts([5, 90, 33, 1, 64]))
    whole = [*islice(kind(corpus, 8, 3, seed=1), 40)]
    resumed = kind(Corpus.open(corpus.folder), 8, 3, seed=1)
    for step in (39, 0, 17, 5):
        assert equal(resumed.at(step), whole[step])
    other = kind(corpus, 8, 3, seed=2)
    assert not all(equal(other.at(step), batch) for step, batch in enumerate(whole))


@BOTH
def test_epochs_come_in_different_orders(kind: Kind, corpus_of: CorpusOf) -> None:
    batches = kind(corpus_of(texts([31] * 8)), context=32, batch_size=8)
    assert batches.steps_per_epoch == 1
    orders = [batches.at(epoch).tokens.reshape(8, 32)[:, 1].tolist() for epoch in range(3)]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2]


@BOTH
@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_see_together_what_one_process_sees(kind: Kind, world_size: int, corpus_of: CorpusOf) -> None:
    corpus = corpus_of(texts([5, 90, 33, 1, 64]))
    ranks = [kind(corpus, 8, 2, seed=1, rank=rank, world_size=world_size) for rank in range(world_size)]
    one = kind(corpus, 8, 2 * world_size, seed=1)
    dim = 1 if kind is PackedBatches else 0
    for step in range(30):
        parts, whole = [rank.at(step) for rank in ranks], one.at(step)
        for name in ("tokens", "targets", "weights", "token_mask", "reset"):
            if getattr(whole, name) is not None:
                assert torch.equal(torch.cat([getattr(part, name) for part in parts], dim), getattr(whole, name))
        if whole.cu_seqlens is not None:
            runs = torch.cat([part.cu_seqlens.diff() for part in parts if part.cu_seqlens is not None])
            assert torch.equal(runs, whole.cu_seqlens.diff())
    assert {batches.steps_per_epoch for batches in (*ranks, one)} == {one.steps_per_epoch}


def test_a_batch_takes_its_rows_from_everywhere_in_a_long_document(corpus_of: CorpusOf) -> None:
    batches = PackedBatches(corpus_of(texts([1599])), context=16, batch_size=10)
    rows = [row for step in range(10) for row in batches.rows(step)]
    assert sorted(rows) == [*range(100)]
    assert max(rows[:10]) - min(rows[:10]) > 50
    assert rows != [row % 100 for step in range(10, 20) for row in batches.rows(step)]


def test_the_cuts_of_rows_fall_elsewhere_in_each_epoch(corpus_of: CorpusOf) -> None:
    batches = PackedBatches(corpus_of(texts([100])), context=16, batch_size=6)
    first = {tuple(row) for row in batches.at(0).tokens.reshape(6, 16).tolist()}
    second = {tuple(row) for row in batches.at(1).tokens.reshape(6, 16).tolist()}
    assert not first & second


@BOTH
def test_both_parts_of_a_split_make_batches(kind: Kind, corpus_of: CorpusOf) -> None:
    train, validation = corpus_of(texts([400])).split(0.25)
    ends = [kind(part, 50, 1).steps_per_epoch for part in (train, validation)]
    assert ends == [7, 3]
    seen = {int(t) for step in range(4) for t in kind(validation, 50, 1).at(step).tokens.flatten()} - {END}
    assert seen == set(texts([400])[0][300:])


@BOTH
def test_data_shorter_than_one_context(kind: Kind, corpus_of: CorpusOf) -> None:
    corpus = corpus_of([b"abcd"])
    kind(corpus, 5, 1)
    with pytest.raises(DataError, match=r"at least one context of 6 tokens, got 5 \(in 1 document, ends included\)"):
        kind(corpus, 6, 1)


@BOTH
def test_arguments_that_cannot_be(kind: Kind, corpus_of: CorpusOf) -> None:
    corpus = corpus_of([b"abcd", b"efgh"])
    with pytest.raises(InputError, match="context and batch_size of at least 1, got 0 and 1"):
        kind(corpus, 0, 1)
    with pytest.raises(InputError, match="context and batch_size of at least 1, got 4 and 0"):
        kind(corpus, 4, 0)
    with pytest.raises(InputError, match="a seed of at least 0, got -1"):
        kind(corpus, 4, 1, seed=-1)
    for rank, world_size in ((2, 2), (-1, 1), (0, 0)):
        with pytest.raises(InputError, match="expected 0 <= rank < world_size"):
            kind(corpus, 4, 1, rank=rank, world_size=world_size)
    with pytest.raises(DataError, match=r"got 10 \(in 2 documents"):
        kind(corpus, 11, 1)
    with pytest.raises(InputError, match="expected a step of at least 0, got -1"):
        kind(corpus, 4, 1).at(-1)


@BOTH
def test_a_batch_moves_to_a_device(kind: Kind, corpus_of: CorpusOf) -> None:
    batch = kind(corpus_of([b"abcd"]), 5, 1).at(0)
    moved = batch.to("meta")
    for before, after in zip(batch, moved, strict=True):
        assert (before is None) == (after is None)
        assert after is None or after.device.type == "meta"
