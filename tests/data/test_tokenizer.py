"""Every tokenizer gives back the bytes it was given, and says how many each token stands for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data import (
    BPETokenizer,
    ByteTokenizer,
    Document,
    StreamDecoder,
    Tokenizer,
    load_tokenizer,
    stdlib_folder,
)
from lavagna.data.tokenizer import _cut_at_lines
from lavagna.errors import DataError, InputError

TEXT = b"def f(x):\n    return x + 1\n\n\nclass A:\n\tpass\n" * 50 + "perché così è più sù\n".encode() * 20
END = "<|endoftext|>"


@pytest.fixture(scope="module")
def trained() -> BPETokenizer:
    return BPETokenizer.train([Document("a", TEXT), Document("b", TEXT[:100])], vocab_size=290)


@pytest.fixture(scope="module")
def blanks() -> BPETokenizer:
    """A vocabulary of Llama 2's kind: "▁" for a blank, one put in front, a fallback to bytes."""
    from tokenizers import AddedToken, decoders, models, normalizers
    from tokenizers import Tokenizer as Inner

    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), "▁", "a", "b", "▁a", "ab", "▁ab"]
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b")]
    inner = Inner(models.BPE({p: i for i, p in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    return BPETokenizer(inner.to_str())


@pytest.fixture(params=["bytes", "trained"])
def tokenizer(request: pytest.FixtureRequest, trained: BPETokenizer) -> Tokenizer:
    return ByteTokenizer() if request.param == "bytes" else trained


@given(text=st.binary())
@pytest.mark.parametrize("kind", ["bytes", "trained"])
def test_any_bytes_come_back(kind: str, text: bytes, trained: BPETokenizer) -> None:
    tokenizer = ByteTokenizer() if kind == "bytes" else trained
    ids = tokenizer.encode(text)
    assert ids.dtype == tokenizer.dtype == np.uint16
    assert tokenizer.decode(ids) == text
    assert tokenizer.token_bytes()[ids].sum() == len(text)
    assert tokenizer.end_of_document not in ids


@given(text=st.text())
@pytest.mark.parametrize("kind", ["bytes", "trained"])
def test_any_text_comes_back_and_streams(kind: str, text: str, trained: BPETokenizer) -> None:
    tokenizer = ByteTokenizer() if kind == "bytes" else trained
    ids = tokenizer.encode(text)
    np.testing.assert_array_equal(ids, tokenizer.encode(text.encode()))
    assert tokenizer.decode(ids).decode() == text
    decoder = StreamDecoder(tokenizer)
    assert "".join(decoder.push([token]) for token in ids) + decoder.finish() == text


def test_byte_tokenizer_counts() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, tokenizer.end_of_document) == (257, 256)
    assert tokenizer.encode("è").tolist() == [0xC3, 0xA8]
    assert tokenizer.decode([0xC3, 256, 0xA8]) == "è".encode()
    assert tokenizer.decode([]) == b""
    assert tokenizer.token_bytes().tolist() == [1] * 256 + [0]


def test_a_character_is_streamed_when_its_last_byte_came(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.encode(bytes([value]))[0] for value in "€x".encode()]
    decoder = StreamDecoder(tokenizer)
    assert [decoder.push([i]) for i in ids] == ["", "", "€", "x"]
    assert decoder.push(ids[:2]) == ""
    assert decoder.push([tokenizer.end_of_document]) == ""
    assert decoder.finish() == "\N{REPLACEMENT CHARACTER}"
    assert decoder.push(ids) + decoder.finish() == "€x"


def test_ids_outside_are_refused(tokenizer: Tokenizer) -> None:
    for ids in ([tokenizer.vocab_size], [-1]):
        with pytest.raises(InputError, match=rf"expected ids from 0 to {tokenizer.vocab_size - 1}, got"):
            tokenizer.decode(ids)


def test_training_merges_what_is_frequent_and_keeps_every_byte(trained: BPETokenizer) -> None:
    assert trained.vocab_size == 290
    counts = trained.token_bytes()
    assert counts[trained.end_of_document] == 0
    assert (counts == 1).sum() == 256
    assert counts.max() > 3
    assert len(trained.encode(TEXT)) < len(TEXT) / 2
    again = BPETokenizer.train([Document("a", TEXT), Document("b", TEXT[:100])], vocab_size=290)
    assert again.fingerprint == trained.fingerprint
    assert BPETokenizer.train([Document("a", TEXT)], 280).fingerprint != trained.fingerprint


def test_training_on_few_bytes_gives_fewer_tokens() -> None:
    assert BPETokenizer.train([Document("a", b"aa\xff")], 1000).vocab_size == 258
    with pytest.raises(InputError, match=r"at least 257 .* got 256"):
        BPETokenizer.train([], 256)


def test_a_control_token_in_a_document_is_text(trained: BPETokenizer) -> None:
    ids = trained.encode(f"a{END}b")
    assert trained.end_of_document not in ids
    assert trained.decode(ids) == f"a{END}b".encode()
    assert trained.decode([*ids, trained.end_of_document]) == f"a{END}b".encode()


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "model")
    loaded = load_tokenizer(tmp_path / "model")
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.end_of_document == tokenizer.end_of_document
    np.testing.assert_array_equal(loaded.encode(TEXT), tokenizer.encode(TEXT))
    assert not list((tmp_path / "model").glob(".*"))  # no half-written file is left


def test_load_by_name_and_by_file(trained: BPETokenizer, tmp_path: Path) -> None:
    assert isinstance(load_tokenizer("bytes"), ByteTokenizer)
    trained.save(tmp_path)
    assert load_tokenizer(tmp_path / "tokenizer.json").fingerprint == trained.fingerprint


def test_transformers_reads_what_was_saved(trained: BPETokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    trained.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXT.decode())["input_ids"] == trained.encode(TEXT).tolist()
    assert theirs.eos_token_id == trained.end_of_document


@pytest.mark.parametrize("eos", ["</s>", {"content": "</s>"}])
def test_the_end_of_documents_is_the_one_of_the_config(blanks: BPETokenizer, tmp_path: Path, eos: object) -> None:
    from tokenizers import Tokenizer as Inner

    blanks.save(tmp_path)
    inner = Inner.from_file(str(tmp_path / "tokenizer.json"))
    inner.add_special_tokens([END])
    inner.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert BPETokenizer.load(tmp_path).end_of_document == inner.token_to_id("</s>")
    assert BPETokenizer.load(tmp_path, end_of_document="<s>").end_of_document == inner.token_to_id("<s>")
    (tmp_path / "tokenizer_config.json").unlink()
    assert BPETokenizer.load(tmp_path).end_of_document == inner.token_to_id(END)


def test_a_vocabulary_with_blanks_and_a_fallback_to_bytes(blanks: BPETokenizer) -> None:
    ids = blanks.encode("ab a\nè")
    assert blanks.decode(ids) == " ab a\nè".encode()
    decoder = StreamDecoder(blanks)
    assert [decoder.push(blanks.encode("ab")), decoder.push(blanks.encode("a"))] == [" ab", " a"]
    sizes = blanks.token_bytes()
    assert sizes[ids].sum() == 1 + len("ab a\nè".encode())  # and the blank put in front
    assert sizes[:3].tolist() == [0, 0, 0]
    assert [part.tolist() for part in blanks.encode_pieces([b"ab", b" a"])] == [blanks.encode("ab a").tolist()]


def test_bytes_without_a_token_are_refused() -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers

    inner = Inner(models.BPE({"a": 0, END: 1}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END])
    tokenizer = BPETokenizer(inner.to_str())
    assert tokenizer.encode(b"aa").tolist() == [0, 0]
    with pytest.raises(DataError, match=r"expected UTF-8, because the vocabulary has no token for the byte b'\\xff'"):
        tokenizer.encode(b"a\xff")


def test_what_does_not_load_is_named(blanks: BPETokenizer, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import models

    with pytest.raises(DataError, match=r"'bytes', a tokenizer.json or a model's folder, but 'nothing' does not"):
        load_tokenizer("nothing")
    with pytest.raises(DataError, match=r"expected a tokenizer in .* has neither tokenizer.json nor our"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"expected the text of a tokenizer.json, got one that does not load"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"cannot read .*tokenizer\.json"):
        load_tokenizer(tmp_path)
    blanks.save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(DataError, match=r"expected JSON in .*tokenizer_config\.json"):
        load_tokenizer(tmp_path)
    words = Inner(models.WordPiece({"a": 0, END: 1}, unk_token="a"))
    with pytest.raises(DataError, match=r"expected a byte-level vocabulary, .* got a WordPiece"):
        BPETokenizer(words.to_str())
    text = (tmp_path / "tokenizer.json").read_text()
    with pytest.raises(DataError, match="expected '<end>' in the vocabulary"):
        BPETokenizer(text, "<end>")
    with pytest.raises(DataError, match="a token that no text makes to end documents, got 'ab'"):
        BPETokenizer(text, "ab")
    with pytest.raises(DataError, match=r"the token that ends a document \(end_of_document=\), because"):
        BPETokenizer(Inner(models.BPE({"a": 0}, [])).to_str())


def test_a_long_document_in_pieces_has_the_tokens_of_the_whole(
    trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavagna.data.tokenizer.PIECE", 10_000)
    text = (stdlib_folder() / "_pydecimal.py").read_bytes()
    pieces = [text[start : start + 3_001] for start in range(0, len(text), 3_001)]
    parts = [*trained.encode_pieces(pieces)]
    assert len(parts) > 3
    np.testing.assert_array_equal(np.concatenate(parts), trained.encode(text))


def test_a_long_document_is_cut_where_no_white_space_is_beside_the_newline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lavagna.data.tokenizer.PIECE", 20)
    lines = ["黑板黑板黑板黑\n", "板黑板黑板黑板\n", "\N{NO-BREAK SPACE}黑板黑板黑板\n", "黑板黑板黑板\n", "\n", "a"]
    data = "".join(lines).encode()
    for size in (1, 7, 23, 1000):
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        parts = [part.decode() for part in _cut_at_lines(pieces)]
        assert "".join(parts) == "".join(lines)
        assert not any(part[0].isspace() or part.endswith("\n\n") or part == "a" for part in parts)
        if size == 1:
            assert parts == [lines[0], lines[1] + lines[2], lines[3] + lines[4] + lines[5]]


def test_a_long_document_without_a_place_to_cut(trained: BPETokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lavagna.data.tokenizer.PIECE", 1_000)
    pieces = [b"a\n\nb" * 800] * 5
    (ids,) = trained.encode_pieces(pieces)
    np.testing.assert_array_equal(ids, trained.encode(b"".join(pieces)))


def test_gpt2(shared_data: Path) -> None:
    from tokenizers import Tokenizer as Inner
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = json.loads((shared_data / "tokenizers" / "gpt2_encoder.json").read_text())
    lines = (shared_data / "tokenizers" / "gpt2_vocab.bpe").read_text(encoding="utf-8").splitlines()
    inner = Inner(models.BPE(vocabulary, [tuple(line.split()) for line in lines[1:] if line]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([END])
    gpt2 = BPETokenizer(inner.to_str())
    assert (gpt2.vocab_size, gpt2.end_of_document) == (50257, 50256)
    assert gpt2.encode("Hello world").tolist() == [15496, 995]
    book = (shared_data / "text" / "moby_dick.txt").read_bytes()
    ids = np.concatenate([*gpt2.encode_pieces([book])])
    assert gpt2.decode(ids) == book
    assert gpt2.token_bytes()[ids].sum() == 1_204_997
