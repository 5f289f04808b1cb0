"""Generation in text: prompts in, pieces of text out as they are made, stop strings, several samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from ..data.tokenizer import StreamDecoder, Tokenizer
from ..errors import InputError
from ..models import LanguageModel
from .generate import stream
from .reading import Reading, read
from .sampling import Sampling

__all__ = ["Piece", "StopHolder", "encode_prompt", "stream_text"]


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


def encode_prompt(tokenizer: Tokenizer, prompt: str, *, starts_document: bool) -> torch.Tensor:
    """Tokens of a prompt, int64 [T].

    Args:
        tokenizer: the model's.
        prompt: the text.
        starts_document: put the end-of-document token first, as training does before each document.
    """
    start = [tokenizer.end_of_document] if starts_document else []
    return torch.tensor([*start, *tokenizer.encode(prompt).tolist()], dtype=torch.int64)


def stream_text(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    *,
    max_tokens: int,
    samples: int = 1,
    after: Reading | None = None,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
    prefill_chunk: int = 2048,
) -> Iterator[Piece]:
    """Continue texts, yielding each piece as soon as its characters are complete.

    Args:
        model, tokenizer: what a model folder holds.
        prompts: one text per row; with `after`, what follows what was read.
        max_tokens: new tokens per row.
        samples: continuations of each prompt; row p · samples + s is sample s of prompt p.
        after: an earlier reading, of one row per prompt, or of one row for all.
        sampling: how to choose.
        stops: strings that end a row; they are not part of its text.
        prefill_chunk: prompt tokens read at once.

    Yields:
        Pieces of text by row; the last of each row has ``done``.
    """
    if samples < 1:
        raise InputError(f"the number of samples must be at least 1, got {samples}")
    if after is not None and len(after.logits) == 1 < len(prompts):
        after = after.fork(len(prompts))
    tokens = [encode_prompt(tokenizer, prompt, starts_document=after is None) for prompt in prompts]
    reading = read(model, tokens, after, prefill_chunk=prefill_chunk).fork(samples)
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
