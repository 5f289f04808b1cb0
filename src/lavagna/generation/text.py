"""Generation in text: prompts in, pieces of text out as they are made, stop strings, several samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from ..data.tokenizer import StreamDecoder, Tokenizer
from ..errors import InputError
from ..models import LanguageModel
from .reading import Reading, read
from .sampling import Sampling
from .streaming import stream

__all__ = ["Piece", "StopHolder", "read_text", "stream_text"]


class Piece(NamedTuple):
    """A piece of text of one row; `done` with the last one."""

    row: int
    text: str
    done: bool


class StopHolder:
    """Lets text through up to a stop string, and holds back what may be the beginning of one.

    Args:
        stops: strings that end a text; they are not part of it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise InputError("a stop string must not be empty")
        self.stops = tuple(stops)
        self.held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take new text; return what is certainly before any stop string."""
        if self.stopped:
            return ""
        self.held += text
        found = [at for stop in self.stops if (at := self.held.find(stop)) >= 0]
        if found:
            self.stopped = True
            out, self.held = self.held[: min(found)], ""
            return out
        keep = max((n for stop in self.stops for n in range(1, len(stop)) if self.held.endswith(stop[:n])), default=0)
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out

    def finish(self) -> str:
        """No more text comes: return what was held back."""
        out, self.held = self.held, ""
        return out


def read_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str | bytes],
    after: Reading | None = None,
    *,
    prefill_chunk: int = 2048,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reading:
    """Read one text per row; arguments and errors as in :func:`read`.

    At the start of a document the tokenizer's end of document is read first, as in training, so that an empty
    text is one too.
    """
    start = [tokenizer.end_of_document] if after is None else []
    tokens = [torch.tensor([*start, *tokenizer.encode(prompt).tolist()], dtype=torch.int64) for prompt in prompts]
    return read(model, tokens, after, prefill_chunk=prefill_chunk, on_progress=on_progress)


def stream_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    reading: Reading,
    *,
    max_tokens: int,
    samples: int = 1,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
) -> Iterator[Piece]:
    """Continue texts, yielding each piece as soon as its characters are complete.

    Args:
        model, tokenizer: what a model folder holds.
        reading: what was read, one row per text.
        max_tokens: new tokens per sample.
        samples: continuations of each text; row p · samples + s is sample s of text p.
        sampling: how to choose.
        stops: strings that end a sample; they are not part of its text.

    Yields:
        Pieces of text by row; the last of each row has ``done``.
    """
    if samples < 1:
        raise InputError(f"the number of samples must be at least 1, got {samples}")
    reading = reading.fork(samples)
    count = len(reading.logits)
    decoders = [StreamDecoder(tokenizer) for _ in range(count)]
    holders = [StopHolder(stops) for _ in range(count)]
    open_rows = set(range(count))

    def rest(row: int) -> str:
        return holders[row].push(decoders[row].finish()) + holders[row].finish()

    steps = stream(
        model,
        reading,
        max_tokens=max_tokens,
        sampling=sampling,
        end_tokens=frozenset([tokenizer.end_of_document]),
        stopped=lambda row: holders[row].stopped,
        choices=tokenizer.vocab_size,
    )
    for rows, new, _ in steps:
        for row, token in zip(rows, new, strict=True):
            text = holders[row].push(decoders[row].push([token]))
            if holders[row].stopped or token == tokenizer.end_of_document:
                open_rows.discard(row)
                yield Piece(row, text + rest(row), True)
            elif text:
                yield Piece(row, text, False)
    for row in sorted(open_rows):
        yield Piece(row, rest(row), True)
