"""A corpus holds the documents' tokens exactly, is mapped, reused, rebuilt, and never half there."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data import BPETokenizer, ByteTokenizer, Corpus, Document, PackedBatches, documents, prepare
from lavagna.errors import DataError, InputError

from .conftest import write_corpus

CorpusOf = Callable[[Sequence[bytes]], Corpus]
TEXTS = [b"one", "perché".encode(), b"\xff\1x", b"four" * 100]


def texts_of(corpus: Corpus) -> list[bytes]:
    return [corpus.tokenizer.decode(ids) for ids in corpus.documents()]


def test_a_corpus_holds_its_documents(corpus_of: CorpusOf) -> None:
    corpus = corpus_of([*TEXTS[:2], b"", TEXTS[3]])
    assert texts_of(corpus) == [TEXTS[0], TEXTS[1], TEXTS[3]]
    assert len(corpus) == 3
    assert corpus.lengths.tolist() == corpus.byte_lengths.tolist() == [3, 7, 400]
    assert corpus.n_tokens == corpus.n_bytes == 410
    assert [Path(name).name for name in corpus.names] == ["0000.txt", "0001.txt", "0003.txt"]
    assert isinstance(corpus.tokenizer, ByteTokenizer)


def test_a_corpus_of_byte_pairs(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"body": f"line {n} è"}) for n in range(50)))
    source = tmp_path / "a.jsonl"
    tokenizer = BPETokenizer.train(documents(source, column="body"), 270)
    corpus = prepare(source, tokenizer, tmp_path / "deep" / "corpus", column="body")
    assert texts_of(corpus) == [document.data for document in documents(source, column="body")]
    assert corpus.n_tokens < corpus.n_bytes == sum(len(text) for text in texts_of(corpus))
    assert corpus.tokenizer.fingerprint == tokenizer.fingerprint
    assert corpus.names[49] == f"{source}:50"
    sizes = tokenizer.token_bytes()
    assert [sizes[ids].sum() for ids in corpus.documents()] == corpus.byte_lengths.tolist()


def test_documents_longer_than_a_piece(corpus_of: CorpusOf) -> None:
    text = bytes(range(1, 256)) * 10_000
    corpus = corpus_of([text, text[:5]])
    assert texts_of(corpus) == [text, text[:5]]


def test_opening_maps_and_does_not_read(corpus_of: CorpusOf) -> None:
    corpus = corpus_of([b"x" * 20_000_000, b"y" * 20_000_000])
    tracemalloc.start()
    corpus = Corpus.open(corpus.folder)
    train, _ = corpus.split()
    batch = PackedBatches(train, 512, 4).at(3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batch.tokens.shape == (1, 2048)
    assert peak < 1_000_000
    assert np.shares_memory(corpus.document(1), corpus.tokens)
    with pytest.raises(ValueError, match="read-only"):
        corpus.document(0)[0] = 1


def test_building_holds_no_file_in_memory(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 40_000_000)
    tracemalloc.start()
    prepare(tmp_path / "a.txt", ByteTokenizer(), tmp_path / "corpus")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12_000_000


def test_progress_ends_at_all_bytes(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    (tmp_path / "a.txt").write_bytes(b"x" * 3_000_000)
    prepare(tmp_path / "a.txt", ByteTokenizer(), tmp_path / "corpus", progress=lambda *at: seen.append(at))
    assert len(seen) >= 3
    assert seen[-1] == (3_000_000, 3_000_000)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"first")
    return folder


def built(folder: Path) -> int:
    return (folder / "meta.json").stat().st_ino


def test_an_unchanged_corpus_is_reused(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"
    prepare(source, ByteTokenizer(), folder)
    first = built(folder)
    reads: list[object] = []
    assert texts_of(prepare(source, ByteTokenizer(), folder, progress=lambda *at: reads.append(at))) == [b"first"]
    assert built(folder) == first
    assert reads == []


@pytest.mark.parametrize("change", ["content", "time", "more", "tokenizer", "column", "pattern"])
def test_a_changed_corpus_is_rebuilt(source: Path, tmp_path: Path, change: str) -> None:
    folder = tmp_path / "corpus"
    file = source / "a.txt"
    (source / "z.md").write_bytes(b"last")
    before = prepare(source, ByteTokenizer(), folder)
    number, status = built(folder), file.stat()
    expected = [b"first", b"last"]
    if change == "content":
        file.write_bytes(b"other text")
        expected[0] = b"other text"
    elif change == "time":
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "more":
        (source / "b.txt").write_bytes(b"second")
        expected.insert(1, b"second")
    elif change == "pattern":
        expected.pop()
    tokenizer = BPETokenizer.train([Document("", b"firstfirst")], 258) if change == "tokenizer" else ByteTokenizer()
    options = {"column": {"column": "body"}, "pattern": {"pattern": "*.txt"}}.get(change, {})
    after = prepare(source, tokenizer, folder, **options)
    assert built(folder) != number
    assert texts_of(after) == expected
    assert after.fingerprint != before.fingerprint
    assert texts_of(before) == [b"first", b"last"]  # who has the old files mapped still reads them
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "source"]


def test_a_corpus_within_its_own_source_is_not_read(source: Path) -> None:
    prepare(source, ByteTokenizer(), source / "corpus")
    number = built(source / "corpus")
    assert texts_of(prepare(source, ByteTokenizer(), source / "corpus")) == [b"first"]
    assert built(source / "corpus") == number


class Interrupted(KeyboardInterrupt):
    pass


def test_an_interrupted_build_leaves_nothing_that_opens(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "corpus"

    def interrupt(done: int, total: int) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        prepare(source, ByteTokenizer(), folder, progress=interrupt)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]
    with pytest.raises(DataError, match=r"expected a corpus in .*corpus, but it has no readable meta.json"):
        Corpus.open(folder)

    prepare(source, ByteTokenizer(), folder)
    (source / "b.txt").write_bytes(b"second")
    with pytest.raises(Interrupted):
        prepare(source, ByteTokenizer(), folder, progress=interrupt)
    assert texts_of(Corpus.open(folder)) == [b"first"]  # the old one is whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "source"]


def build_and_die(source: Path, folder: Path) -> None:
    prepare(source, ByteTokenizer(), folder, progress=lambda *at: os._exit(9))


def test_a_killed_build_leaves_nothing_that_opens_and_is_swept_later(source: Path, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=build_and_die, args=(source, tmp_path / "corpus"))
    process.start()
    process.join()
    assert process.exitcode == 9
    (left,) = [path for path in tmp_path.iterdir() if path != source]
    for folder in (left, left / "new", tmp_path / "corpus"):
        with pytest.raises(DataError, match="expected a corpus"):
            Corpus.open(folder)
    prepare(source, ByteTokenizer(), tmp_path / "corpus")
    assert left.exists()  # it could be another process at work
    two_days_ago = time.time() - 2 * 86400
    os.utime(left, (two_days_ago, two_days_ago))
    (source / "b.txt").write_bytes(b"second")
    prepare(source, ByteTokenizer(), tmp_path / "corpus")
    assert not left.exists()


def test_two_processes_that_build_the_same_corpus_both_get_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "corpus", os.rename

    def beaten(old: Path, new: Path) -> None:
        monkeypatch.undo()
        prepare(source, ByteTokenizer(), folder)  # the other process is done just before
        rename(old, new)

    monkeypatch.setattr("os.rename", beaten)
    assert texts_of(prepare(source, ByteTokenizer(), folder)) == [b"first"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "source"]


def test_a_failed_replacement_keeps_the_old_corpus(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename = tmp_path / "corpus", os.rename
    prepare(source, ByteTokenizer(), folder)
    (source / "b.txt").write_bytes(b"second")

    def fails(old: Path, new: Path) -> None:
        if old.name == "new":
            raise OSError("no room")
        rename(old, new)

    monkeypatch.setattr("os.rename", fails)
    with pytest.raises(OSError, match="no room"):
        prepare(source, ByteTokenizer(), folder)
    assert texts_of(Corpus.open(folder)) == [b"first"]


def test_a_folder_of_something_else_is_refused(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    prepare(source, ByteTokenizer(), folder)  # an empty folder is fine
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("years of work")
    for taken in (other, other / "thesis.tex"):
        with pytest.raises(DataError, match="expected a corpus, an empty folder or nothing at"):
            prepare(source, ByteTokenizer(), taken)
    assert (other / "thesis.tex").read_text() == "years of work"


def test_a_damaged_corpus_is_named(corpus_of: CorpusOf) -> None:
    folder = corpus_of(TEXTS).folder
    tokens = folder / "tokens.bin"
    whole = tokens.read_bytes()
    tokens.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"expected 413 tokens in 4 documents in .*, got 412 in 4: remove the folder"):
        Corpus.open(folder)
    tokens.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="cannot read the corpus"):
        Corpus.open(folder)
    tokens.unlink()
    with pytest.raises(DataError, match="cannot read the corpus"):
        Corpus.open(folder)
    meta = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(DataError, match=r"expected format 1 of the corpus in .*, got 99"):
        Corpus.open(folder)
    (folder / "meta.json").write_text("[]")
    with pytest.raises(DataError, match=r"no readable meta\.json"):
        Corpus.open(folder)


def test_text_of_which_the_tokenizer_makes_nothing(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, pre_tokenizers

    inner = Inner(models.BPE({"a": 0, "</s>": 1}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.add_special_tokens(["</s>"])
    (tmp_path / "1.txt").write_text("aa")
    (tmp_path / "2.txt").write_text("bb")
    tokenizer = BPETokenizer(inner.to_str())
    assert [*map(len, prepare(tmp_path, tokenizer, tmp_path / "corpus").documents())] == [2]
    with pytest.raises(DataError, match="expected at least one token"):
        prepare(tmp_path / "2.txt", tokenizer, tmp_path / "other")


@given(
    lengths=st.lists(st.integers(1, 30), min_size=2, max_size=20),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 3),
)
def test_a_split_is_by_document_disjoint_stable_and_never_empty(lengths: list[int], fraction: float, seed: int) -> None:
    with TemporaryDirectory() as folder:
        corpus = write_corpus(Path(folder), [bytes([n + 1]) * length for n, length in enumerate(lengths)])
        train, validation = corpus.split(fraction, seed)
        again = Corpus.open(corpus.folder).split(fraction, seed)
        for part, other in zip((train, validation), again, strict=True):
            assert texts_of(part) == texts_of(other)
            assert texts_of(part) == sorted(texts_of(part))
            assert len(part) > 0
            assert part.names == [corpus.names[text[0] - 1] for text in texts_of(part)]
            assert part.lengths.tolist() == part.byte_lengths.tolist() == [*map(len, texts_of(part))]
        assert sorted(texts_of(train) + texts_of(validation)) == texts_of(corpus)
        assert train.n_tokens + validation.n_tokens == corpus.n_tokens
        room = fraction * corpus.n_tokens - validation.n_tokens
        assert room >= 0 or len(validation) == 1
        assert not any(length <= room for length in train.lengths)  # as full as the order allows


def test_seeds_split_differently_and_parts_split_again(corpus_of: CorpusOf) -> None:
    corpus = corpus_of([b"%03d" % n for n in range(100)])
    parts = [texts_of(corpus.split(0.1, seed)[1]) for seed in range(3)]
    assert [len(part) for part in parts] == [10, 10, 10]
    assert parts[0] != parts[1] != parts[2]
    train, _ = corpus.split(0.1)
    rest, test = train.split(0.1)
    assert set(texts_of(rest)) | set(texts_of(test)) == set(texts_of(train))
    assert [Path(name).stem for name in test.names] == [f"{int(text):04}" for text in texts_of(test)]


def test_a_single_document_is_cut_once(corpus_of: CorpusOf) -> None:
    text = bytes(range(1, 201))
    train, validation = corpus_of([text]).split(0.05)
    assert texts_of(train) == [text[:190]]
    assert texts_of(validation) == [text[190:]]
    assert (train.n_bytes, validation.n_bytes) == (190, 10)
    assert train.names == validation.names
    assert [len(part) for part in train.split(0.001)] == [1, 1]
    assert train.split(0.001)[1].n_tokens == 1


def test_the_bytes_of_a_cut_document_of_byte_pairs(tmp_path: Path) -> None:
    text = "così è, perché ".encode() * 100
    (tmp_path / "a.txt").write_bytes(text)
    corpus = prepare(tmp_path / "a.txt", BPETokenizer.train([Document("", text)], 270), tmp_path / "corpus")
    train, validation = corpus.split(0.3)
    assert texts_of(train)[0] + texts_of(validation)[0] == text
    assert [train.n_bytes, validation.n_bytes] == [len(texts_of(train)[0]), len(texts_of(validation)[0])]


def test_splits_that_cannot_be(corpus_of: CorpusOf) -> None:
    corpus = corpus_of([b"x"])
    with pytest.raises(DataError, match="at least 2 tokens to split a single document, got 1"):
        corpus.split()
    for fraction in (0.0, 1.0, float("nan")):
        with pytest.raises(InputError, match="expected 0 < validation_fraction < 1"):
            corpus.split(fraction)
