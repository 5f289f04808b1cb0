"""Text in, text out: stop strings, characters of several bytes, several samples."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lavagna.data import BPETokenizer, ByteTokenizer, Document, Tokenizer
from lavagna.errors import InputError
from lavagna.generation import Piece, Sampling, StopHolder, generate, read, read_text, stream_text
from lavagna.models import LanguageModel, ModelState
from tests.support.models import LAYERS, make_model

GREEDY = Sampling(temperature=0)


def held(stops: Sequence[str], pieces: Iterable[str]) -> str:
    holder = StopHolder(stops)
    return "".join(map(holder.push, pieces)) + holder.finish()


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ([], ["a", "b"], "ab"),
        (["END"], ["one END two"], "one "),
        (["END"], ["one E", "N", "D two"], "one "),
        (["END"], ["one E", "NE", "ND", " two"], "one EN"),
        (["END"], ["one EN"], "one EN"),
        (["aab"], ["a", "a", "a", "b", "c"], "a"),
        (["abc", "b"], ["ab"], "a"),
        (["bc", "abcd"], ["abcd"], "a" * 0),
        (["\n\n"], ["x\n", "y\n", "\nz"], "x\ny"),
        (["è"], ["perch", "è"], "perch"),
    ],
)
def test_text_before_a_stop_string(stops: list[str], pieces: list[str], expected: str) -> None:
    assert held(stops, pieces) == expected


@given(
    text=st.text("ab", max_size=20),
    cuts=st.lists(st.integers(0, 20), max_size=5),
    stop=st.text("ab", min_size=1, max_size=4),
)
def test_the_cuts_do_not_matter(text: str, cuts: list[int], stop: str) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    at = text.find(stop)
    assert held([stop], pieces) == (text if at < 0 else text[:at])


def test_no_more_is_held_back_than_could_be_a_stop() -> None:
    holder = StopHolder(["END", "stop"])
    assert [holder.push(piece) for piece in ("an E", "x", "s", "to", "ne")] == ["an ", "Ex", "", "", "stone"]
    with pytest.raises(InputError, match="a stop string must not be empty"):
        StopHolder([""])


class Scripted(LanguageModel):
    """Says a text whatever it reads: the token after t tokens is the t-th one."""

    script: tuple[int, ...] = ()

    def hidden(self, tokens: Tensor | None = None, **keys: object) -> tuple[Tensor, ModelState]:
        hidden, state = super().hidden(tokens, **keys)  # type: ignore[arg-type]
        assert state.seen is not None
        assert tokens is not None
        ends = state.seen
        self.next = torch.tensor([self.script[min(int(end), len(self.script) - 1)] for end in ends])
        return hidden, state


def scripted(tokenizer: Tokenizer, prompt: str, tokens: Sequence[int]) -> Scripted:
    model = Scripted(make_model(vocab_size=tokenizer.vocab_size, position="sinusoidal").config, seed=0)
    model.script = (*[0] * (1 + len(tokenizer.encode(prompt))), *tokens)

    class Head(torch.nn.Module):
        def forward(self, hidden: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(model.next, tokenizer.vocab_size).float()

    model.head = Head()
    return model


def say(tokens: Sequence[int], tokenizer: Tokenizer | None = None, **keys: object) -> list[Piece]:
    tokenizer = tokenizer or ByteTokenizer()
    model = scripted(tokenizer, "ab", tokens)
    reading = read_text(model, tokenizer, ["ab"])
    return list(stream_text(model, tokenizer, reading, max_tokens=len(tokens), sampling=GREEDY, **keys))  # type: ignore[arg-type]


def test_pieces_come_as_they_are_made() -> None:
    assert say(list(b"hey")) == [Piece(0, "h", False), Piece(0, "e", False), Piece(0, "y", False), Piece(0, "", True)]


def test_a_character_of_several_bytes_comes_whole() -> None:
    assert [piece.text for piece in say(list("aè€😀b".encode()))] == ["a", "è", "€", "😀", "b", ""]
    assert "".join(piece.text for piece in say(list("è".encode())[:1])) == "�"
    assert "".join(piece.text for piece in say([0xFF, *b"a"])) == "�a"


def test_a_stop_string_is_seen_across_tokens_and_bytes() -> None:
    pieces = say(list("uno è finito".encode()), stops=["è fin"])
    assert "".join(piece.text for piece in pieces) == "uno "
    assert pieces[-1].done
    assert len(pieces) <= 5  # nothing is asked for after it


def test_the_end_of_document_ends_a_text_and_is_none_of_it() -> None:
    pieces = say([*b"ok", 256, *b"more"])
    assert "".join(piece.text for piece in pieces) == "ok"
    assert pieces[-1] == Piece(0, "", True)
    held_back = say([*b"ok E", 256], stops=["END"])
    assert "".join(piece.text for piece in held_back) == "ok E"


def test_byte_pair_tokens_are_text_too() -> None:
    tokenizer = BPETokenizer.train([Document("a", b"the cat the cat the cat")] * 3, vocab_size=265)
    tokens = tokenizer.encode("the cat è").tolist()
    assert len(tokens) < len("the cat è".encode())
    assert "".join(piece.text for piece in say(tokens, tokenizer)) == "the cat è"
    assert "".join(piece.text for piece in say(tokens, tokenizer, stops=["e c"])) == "th"


@pytest.mark.parametrize("layers", LAYERS)
def test_samples_are_what_each_seed_gives_alone(layers: str) -> None:
    model, tokenizer = make_model(layers, dtype=torch.float64), ByteTokenizer()
    reading = read_text(model, tokenizer, ["one", "another"])
    texts = ["", "", "", ""]
    done = set()
    for piece in stream_text(model, tokenizer, reading, max_tokens=12, samples=2, sampling=Sampling(seed=4)):
        assert piece.row not in done
        texts[piece.row] += piece.text
        if piece.done:
            done.add(piece.row)
    assert done == {0, 1, 2, 3}
    assert len(set(texts)) == 4
    for row, text in enumerate(texts):
        own = read_text(model, tokenizer, [["one", "another"][row // 2]])
        alone = stream_text(model, tokenizer, own, max_tokens=12, sampling=Sampling(seed=4 + row))
        assert "".join(piece.text for piece in alone) == text


def test_a_document_begins_with_its_end_token_as_in_training() -> None:
    model, tokenizer = make_model(dtype=torch.float64), ByteTokenizer()
    read_as = read(model, [torch.tensor([256, *b"ab"])])
    assert torch.equal(read_text(model, tokenizer, ["ab"]).logits, read_as.logits)
    went_on = read_text(model, tokenizer, [b"cd"], read_as)
    assert torch.equal(went_on.logits, read(model, [torch.tensor(list(b"cd"))], read_as).logits)
    assert read_text(model, tokenizer, [""]).logits.shape == (1, 257)


def test_text_is_what_the_tokens_are() -> None:
    model, tokenizer = make_model(dtype=torch.float64), ByteTokenizer()
    prompt = torch.tensor([256, *b"a page"])
    tokens = generate(model, [prompt], max_tokens=20, sampling=Sampling(seed=2), end_tokens=frozenset([256])).tokens[0]
    reading = read_text(model, tokenizer, ["a page"])
    text = "".join(p.text for p in stream_text(model, tokenizer, reading, max_tokens=20, sampling=Sampling(seed=2)))
    assert text == tokenizer.decode(tokens.tolist()).decode("utf-8", "replace")


def test_samples_must_be_some() -> None:
    model, tokenizer = make_model(), ByteTokenizer()
    reading = read_text(model, tokenizer, ["a"])
    with pytest.raises(InputError, match="the number of samples must be at least 1, got 0"):
        next(stream_text(model, tokenizer, reading, max_tokens=1, samples=0))
