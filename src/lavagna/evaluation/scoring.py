"""What a model gives to each document: bits, by document and by position, in constant memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.corpus import Corpus
from ..errors import InputError
from ..models import LanguageModel, ModelState

__all__ = ["Pieces", "Scores", "choose_pieces", "framed", "position_bins", "score", "windows_per_part"]

LOGITS_AT_ONCE = 1 << 25  # elements
FEW_DOCUMENTS, PARTS = 20, 40


class Scores(NamedTuple):
    """Bits and bytes of everything that was scored.

    Fields:
        documents: int64 [n], number of each document in its corpus, repeated for its parts if it was cut.
        bits: float64 [n], −log2 of the probability of what was scored of each document, its end included.
        bytes: int64 [n], what its scored tokens stand for.
        bins: int64 [k + 1], edges of the position bins: bin i holds positions bins[i] to bins[i+1] − 1.
        position_bits: float64 [n, k], bits by document and by the position of the predicted token.
        position_bytes: int64 [n, k].
    """

    documents: np.ndarray
    bits: np.ndarray
    bytes: np.ndarray
    bins: np.ndarray
    position_bits: np.ndarray
    position_bytes: np.ndarray

    @property
    def bits_per_byte(self) -> float:
        """All bits by all bytes."""
        return float(self.bits.sum() / self.bytes.sum())


def position_bins(longest: int) -> np.ndarray:
    """Edges of position bins: 0, 8, 16, 32, ... up to the first that is at least `longest`."""
    edges = [0, 8]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    return np.array(edges, dtype=np.int64)


class Pieces(NamedTuple):
    """What is scored: elements start to start + length of [E, t_1, ..., t_n] are fed; each field is int64 [n].

    `row` is the piece's place in the scores.
    """

    row: np.ndarray
    document: np.ndarray
    start: np.ndarray
    length: np.ndarray


@torch.no_grad()
def score(
    model: LanguageModel,
    corpus: Corpus,
    *,
    context: int | None = None,
    max_tokens: int | None = None,
    part: int | None = None,
    batch_size: int = 8,
    chunk: int = 512,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Scores:
    """Score documents as the model reads them, each from its beginning.

    Args:
        model: the language model; its mode is left as it is.
        corpus: the documents, of the model's tokenizer.
        context: forget everything after so many tokens, as a model does that was trained on windows of this
            length; None reads each document through with one state.
        max_tokens: take documents (or windows) in one shuffled order, the same for every model, and stop after the
            one with which so many tokens are scored; None scores all.
        part: a document of more windows than this counts as several: where documents are few, intervals can then
            draw their parts again. How it is read does not change.
        batch_size: documents (or windows) read side by side.
        chunk: tokens read at once: memory grows with batch_size · chunk, not with the documents' lengths.
        on_progress: called with (tokens done, tokens in all).

    Returns:
        The scores, by document.

    Raises:
        InputError: context, batch_size or chunk below one, or a vocabulary that is not the model's.
    """
    for name, value in (
        ("context", context),
        ("batch_size", batch_size),
        ("chunk", chunk),
        ("max_tokens", max_tokens),
        ("part", part),
    ):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if corpus.tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"expected tokens of the model's vocabulary of {model.config.vocab_size}, "
            f"got a tokenizer of {corpus.tokenizer.vocab_size}"
        )
    pieces, scored = choose_pieces(corpus, context=context, max_tokens=max_tokens, part=part)
    bins = position_bins(int(pieces.length.max()))
    bits = np.zeros((len(scored), len(bins) - 1))
    sizes = np.zeros((len(scored), len(bins) - 1), dtype=np.int64)
    token_bytes = corpus.tokenizer.token_bytes()
    total, done = int(pieces.length.sum()), 0
    for first in range(0, len(pieces.length), batch_size):
        group = Pieces(*(field[first : first + batch_size] for field in pieces))
        for start, rows, nats, targets in _read(model, corpus, group, chunk):
            for row, row_nats, row_targets in zip(rows, nats, targets, strict=True):
                which = np.searchsorted(bins, start + np.arange(len(row_nats)), side="right") - 1
                np.add.at(bits[group.row[row]], which, row_nats / np.log(2))
                np.add.at(sizes[group.row[row]], which, token_bytes[row_targets])
                done += len(row_nats)
            on_progress(done, total)
    return Scores(scored, bits.sum(1), sizes.sum(1), bins, bits, sizes)


def choose_pieces(
    corpus: Corpus, *, context: int | None = None, max_tokens: int | None = None, part: int | None = None
) -> tuple[Pieces, np.ndarray]:
    """The documents or windows that :func:`score` reads with these arguments, and the document of each row of scores.

    The longest come first: those read side by side are of like length.
    """
    fed = corpus.lengths + 1
    windows = np.ones_like(fed) if context is None else -(-fed // context)
    ends = windows.cumsum()
    numbers = np.arange(ends[-1])
    if max_tokens is not None:
        numbers = np.random.default_rng(0).permutation(numbers)
    document = np.searchsorted(ends, numbers, side="right")
    start = (numbers - (ends - windows)[document]) * (context or 0)
    length = fed[document] - start
    if context is not None:
        length = np.minimum(length, context)
    if max_tokens is not None:
        enough = int(np.searchsorted(length.cumsum(), max_tokens)) + 1
        document, start, length = document[:enough], start[:enough], length[:enough]
    order = np.argsort(-length, kind="stable")
    document, start, length = document[order], start[order], length[order]
    parts = start // (context or 1) // part if part else np.zeros_like(start)
    rows, row = np.unique(np.stack([document, parts]), axis=1, return_inverse=True)
    return Pieces(row.reshape(-1), document, start, length), rows[0]


def windows_per_part(corpus: Corpus, context: int) -> int | None:
    """How many windows should count as a document (see :func:`score`), where there are too few to draw from.

    Returns:
        So many that there are about forty parts, where there are fewer than twenty documents; else None.
    """
    if len(corpus) >= FEW_DOCUMENTS:
        return None
    windows = (corpus.n_tokens + len(corpus)) / context
    return max(math.ceil(windows / PARTS), 1)


def framed(corpus: Corpus, document: int, start: int, length: int) -> np.ndarray:
    """Elements start to start + length of [E, t_1, ..., t_n, E], int64 [length + 1]: inputs and, shifted, targets."""
    elements = np.full(length + 1, corpus.tokenizer.end_of_document, dtype=np.int64)
    ids = corpus.document(document)[max(start - 1, 0) : start + length]
    elements[int(start == 0) :][: len(ids)] = ids
    return elements


def _read(
    model: LanguageModel, corpus: Corpus, group: Pieces, chunk: int
) -> Iterator[tuple[int, np.ndarray, list[np.ndarray], list[np.ndarray]]]:
    """Read pieces side by side; yield (position, rows, nats per row, targets per row) by chunk."""
    device = model.embedding.weight.device
    end = corpus.tokenizer.end_of_document
    state: ModelState | None = None
    rows = np.arange(len(group.length))
    for position in range(0, int(group.length.max()), chunk):
        alive = np.flatnonzero(group.length[rows] > position)
        if state is not None and len(alive) < len(rows):
            state = state.reorder(torch.from_numpy(alive).to(device))
        rows = rows[alive]
        counts = np.minimum(group.length[rows] - position, chunk)
        elements = np.full((len(rows), int(counts.max()) + 1), end, dtype=np.int64)
        for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
            elements[i, : count + 1] = framed(corpus, group.document[row], group.start[row] + position, count)
        tokens = torch.from_numpy(elements).to(device)
        real = np.arange(elements.shape[1] - 1) < counts[:, None]
        mask = None if real.all() else torch.from_numpy(real).to(device)
        hidden, state = model.hidden(tokens[:, :-1], state=state, token_mask=mask)
        nats = _nats(model, hidden, tokens[:, 1:]).numpy()
        yield (
            position,
            rows,
            [nats[i, :count] for i, count in enumerate(counts)],
            [elements[i, 1 : count + 1] for i, count in enumerate(counts)],
        )


def _nats(model: LanguageModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """−ln p of each target: [B, T, D], [B, T] -> float64 [B, T] on the CPU."""
    rows = max(LOGITS_AT_ONCE // model.config.vocab_size, 1)
    losses = []
    for h, t in zip(hidden.flatten(0, 1).split(rows), targets.flatten().split(rows), strict=True):
        logits = model.head(h)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(F.cross_entropy(logits, t, reduction="none").cpu().double())
    return torch.cat(losses).unflatten(0, targets.shape)
