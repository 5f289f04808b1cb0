"""A state of fixed size stays at its size."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from ..finding import Example, Measurement, ModelError, NotApplicable
from ..subject import Subject
from ..trees import held_bytes

__all__ = ["state_grows"]

#: tokens after which the state is weighed
FIRST, LAST = 1024, 16384
#: tokens read at once
PIECE = 1024
#: seconds after which a slow model has been read from long enough
PATIENCE = 10.0
#: memory that a cache of keys and values may hold in reserve, and copies of grouped heads
RESERVE = 3.0


def state_grows(subject: Subject) -> Iterator[Measurement]:
    """Bytes that the state keeps alive, after a thousand tokens and after sixteen thousand.

    Softmax attention needs every key: its cache may grow by the keys and values that were seen in one pass.
    """
    if not subject.takes_state:
        raise NotApplicable("it returns no state")
    reader = Subject.copied(subject.origin, torch.float32)
    last = subject.longest(LAST)
    first = min(FIRST, max(last // 16, 1))
    if last < 2 * first:
        raise NotApplicable(f"it reads no more than {last} tokens")
    state, read, weighed, end = None, 0, {}, ""
    start = time.monotonic()
    while read < last:
        piece = min(PIECE, last - read, first - read if read < first else last)
        try:
            state = reader.read(reader.make(1, piece, seed=read), state).state
        except ModelError as error:
            if read < 2 * first:
                raise NotApplicable(f"after {read:,} tokens the model {error}") from None
            weighed[read] = held_bytes(reader.adapter.contents(state))
            end = f"; behind them the model {error}"
            break
        read += piece
        if read in (first, last):
            weighed[read] = held_bytes(reader.adapter.contents(state))
        elif read >= 2 * first and time.monotonic() - start > PATIENCE:
            weighed[read] = held_bytes(reader.adapter.contents(state))
            break
    (few, small), (many, large) = weighed.items()
    allowed = _cache(subject)
    note = f"{small:,} bytes after {few:,} tokens, {large:,} after {many:,}{end}"
    if allowed:
        note += "; keys and values of softmax attention, which needs them all"
    yield Measurement(
        max(large - small, 0) / (many - few), allowed, Example(many, 1, f"read in pieces of {PIECE}"), note
    )


def _cache(subject: Subject) -> float:
    """Bytes per token that keys and values of softmax attention may take."""
    per_token = 0.0
    for call in subject.attention:
        if call.product is None:
            return float("inf")
        rows = call.product.k[..., 0, :].numel() / 2  # two rows were watched
        per_token += 2 * rows * torch.float32.itemsize
    return RESERVE * per_token
