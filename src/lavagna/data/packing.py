"""From a corpus to batches: documents packed into rows, or streamed with a carried state.

Each document of tokens t_1 … t_n is fed as ``[E, t_1, …, t_n]`` and asked for ``[t_1, …, t_n, E]``, E the
tokenizer's end of document: the first token is predicted from E alone, and where a document stops is
predicted too. No target belongs to another document than its input.

Both kinds of batches are functions of (seed, step) alone: ``at(step)`` makes any batch directly, so a
resumed run sees what an uninterrupted one does, and two ranks with `batch_size` b see together, rank 0's
rows first, exactly the rows of one process with 2b.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, InputError
from .corpus import Corpus

__all__ = ["Batch", "PackedBatches", "StreamBatches"]

DOCUMENTS, ROWS = 0, 1  # what a random order is of; sets the two apart under one seed


class Batch(NamedTuple):
    """What a model is fed and asked for at one step.

    Attributes:
        tokens: int64, [1, batch_size * context] packed, [batch_size, context] streamed.
        targets: int64, like `tokens`: the next token within the same document.
        weights: float32, like `tokens`: of each target in the loss, 1, or 0 at padding.
        cu_seqlens: int64 [M + 1], packed only: where each of M runs of text begins, and the end. A run
            is a document, or the part of it that is in one row.
        token_mask: bool, like `tokens`, streamed only: True at real tokens, which come first in a row.
        reset: bool [batch_size], streamed only: True where a row's carried state must be zeroed first.
    """

    tokens: Tensor
    targets: Tensor
    weights: Tensor
    cu_seqlens: Tensor | None = None
    token_mask: Tensor | None = None
    reset: Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """Return the batch with its tensors on a device."""
        moved = {name: field.to(device) for name, field in self._asdict().items() if field is not None}
        return Batch(**moved)


class _Batches:
    """What both kinds share: checked sizes, this rank's rows of a step, the order of documents."""

    def __init__(self, corpus: Corpus, context: int, batch_size: int, seed: int, rank: int, world_size: int) -> None:
        if context < 1 or batch_size < 1:
            raise InputError(f"expected context and batch_size of at least 1, got {context} and {batch_size}")
        if seed < 0:
            raise InputError(f"expected a seed of at least 0, got {seed}")
        if not 0 <= rank < world_size:
            raise InputError(f"expected 0 <= rank < world_size, got rank {rank} of {world_size}")
        fed = corpus.n_tokens + len(corpus)
        if fed < context:
            raise DataError(
                f"expected data of at least one context of {context} tokens, got {fed} "
                f"(in {len(corpus)} document{'s' if len(corpus) > 1 else ''}, ends included)"
            )
        self.corpus = corpus
        self.context = context
        self.batch_size = batch_size
        self.seed = seed
        self.rows_per_step = batch_size * world_size
        self._rows = rank * batch_size + np.arange(batch_size)
        self._end = corpus.tokenizer.end_of_document
        self._permutation = lru_cache(maxsize=4)(self._permute)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of step 0, 1, …, without end."""
        return map(self.at, count())

    def at(self, step: int) -> Batch:
        """Return this rank's batch of a step, step >= 0."""
        if step < 0:
            raise InputError(f"expected a step of at least 0, got {step}")
        return self._batch(step)

    def _batch(self, step: int) -> Batch:
        raise NotImplementedError

    def _permute(self, what: int, number: int, size: int) -> np.ndarray:
        return np.random.default_rng([self.seed, what, number]).permutation(size)

    def _framed(self, document: int, start: int, stop: int) -> np.ndarray:
        """Return elements start to stop of [E, t_1, …, t_n, E] as int64."""
        ids = self.corpus.document(document)[max(start - 1, 0) : max(stop - 1, 0)]
        framed = np.full(stop - start, self._end, dtype=np.int64)
        first = int(start == 0)
        framed[first : first + len(ids)] = ids
        return framed


class PackedBatches(_Batches):
    """Documents one after another without padding, cut into rows of `context` tokens.

    The documents of epoch 0, 1, … in an order shuffled for each make one endless stream, cut into rows;
    about an epoch's rows at a time are shuffled, so that a batch takes its rows from everywhere, a single
    long document included. Nothing is left out, and the cuts fall elsewhere in each epoch. The rows of a
    batch are joined into one of batch 1 with `cu_seqlens` at each row's and each document's beginning:
    no row sees another and no document its neighbour.

    Args:
        corpus: where the documents are.
        context: tokens a row.
        batch_size: rows a batch, on each rank.
        seed: >= 0, of all orders.
        rank, world_size: this process among those that share the rows of a step.

    Raises:
        DataError: the corpus is shorter than one context.
        InputError: a number outside of its range.
    """

    def __init__(
        self,
        corpus: Corpus,
        context: int,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(corpus, context, batch_size, seed, rank, world_size)
        self._epoch_tokens = corpus.n_tokens + len(corpus)
        self._block = self._epoch_tokens // context  # rows shuffled together
        self._ends = lru_cache(maxsize=2)(self._document_ends)

    @property
    def steps_per_epoch(self) -> int:
        """Steps that read as many tokens as the corpus has, rounded up."""
        return -(-self._epoch_tokens // (self.context * self.rows_per_step))

    def rows(self, step: int) -> list[int]:
        """Return which rows of the stream this rank reads at a step: row r is tokens r·context and on."""
        numbers = (divmod(int(n), self._block) for n in step * self.rows_per_step + self._rows)
        return [block * self._block + int(self._permutation(ROWS, block, self._block)[n]) for block, n in numbers]

    def _batch(self, step: int) -> Batch:
        runs = [run for row in self.rows(step) for run in self._read(row * self.context, self.context)]
        tokens = torch.from_numpy(np.concatenate([run[:-1] for run in runs]))[None]
        targets = torch.from_numpy(np.concatenate([run[1:] for run in runs]))[None]
        boundaries = np.cumsum([0, *(len(run) - 1 for run in runs)], dtype=np.int64)
        return Batch(tokens, targets, torch.ones(tokens.shape), cu_seqlens=torch.from_numpy(boundaries))

    def _document_ends(self, epoch: int) -> np.ndarray:
        order = self._permutation(DOCUMENTS, epoch, len(self.corpus))
        return np.cumsum(self.corpus.lengths[order] + 1)

    def _read(self, position: int, length: int) -> Iterator[np.ndarray]:
        """Yield the runs of the stream from a position, each with one more token, its last target."""
        while length > 0:
            epoch, place = divmod(position, self._epoch_tokens)
            ends = self._ends(epoch)
            i = int(np.searchsorted(ends, place, side="right"))
            document = int(self._permutation(DOCUMENTS, epoch, len(self.corpus))[i])
            start = place - (int(ends[i - 1]) if i else 0)
            take = min(int(ends[i]) - place, length)
            yield self._framed(document, start, start + take + 1)
            position += take
            length -= take


class StreamBatches(_Batches):
    """Long documents read through in segments of `context`, for training with the carried state.

    Documents, in an order shuffled for each epoch, are cut into segments, the last one of each padded;
    the epoch's line of segments is dealt out in equal spans, one to each row. So step s + 1 continues in
    each row what step s read, unless `reset` says that a document, or the row's span, begins. A row may
    begin within a document, and where the spans don't come out even the last goes on with the first
    segments of the line: at most rows − 1 segments are read twice in an epoch, and none is left out.

    Args:
        corpus: where the documents are.
        context: tokens a segment.
        batch_size: rows a batch, on each rank.
        seed: >= 0, of the documents' order.
        rank, world_size: this process among those that share the rows of a step.

    Raises:
        DataError: the corpus is shorter than one context.
        InputError: a number outside of its range.
    """

    def __init__(
        self,
        corpus: Corpus,
        context: int,
        batch_size: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(corpus, context, batch_size, seed, rank, world_size)
        self._segments = -(-(corpus.lengths + 1) // context)  # of each document
        self._ends = lru_cache(maxsize=1)(self._document_ends)

    @property
    def steps_per_epoch(self) -> int:
        """Steps after which every segment was read: the length of a row's span."""
        return -(-int(self._segments.sum()) // self.rows_per_step)

    def _batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        ends = self._ends(epoch)
        order = self._permutation(DOCUMENTS, epoch, len(self.corpus))
        shape = (self.batch_size, self.context)
        tokens = np.full(shape, self._end, dtype=np.int64)
        targets = tokens.copy()
        mask = np.zeros(shape, dtype=bool)
        reset = np.full(self.batch_size, place == 0)
        for b, row in enumerate(self._rows):
            segment = (int(row) * self.steps_per_epoch + place) % int(ends[-1])
            i = int(np.searchsorted(ends, segment, side="right"))
            start = (segment - (int(ends[i - 1]) if i else 0)) * self.context
            size = min(self.context, int(self.corpus.lengths[order[i]]) + 1 - start)
            run = self._framed(int(order[i]), start, start + size + 1)
            tokens[b, :size], targets[b, :size], mask[b, :size] = run[:-1], run[1:], True
            reset[b] |= start == 0
        token_mask = torch.from_numpy(mask)
        return Batch(
            torch.from_numpy(tokens),
            torch.from_numpy(targets),
            token_mask.float(),
            token_mask=token_mask,
            reset=torch.from_numpy(reset),
        )

    def _document_ends(self, epoch: int) -> np.ndarray:
        order = self._permutation(DOCUMENTS, epoch, len(self.corpus))
        return np.cumsum(self._segments[order])
