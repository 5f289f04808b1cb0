"""What a model gives to each document: bits, by document and by position, in constant memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.corpus import Corpus
from ..errors import InputError
from ..models import LanguageModel, ModelState

__all__ = ["Scores", "position_bins", "score"]


class Scores(NamedTuple):
    """Bits and bytes of everything that was scored.

    Fields:
        documents: int64 [n], number of each document in its corpus.
        bits: float64 [n], −log2 of the probability of each document, its end included.
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


class _Piece(NamedTuple):
    document: int  # place among the scored documents
    start: int  # first element of [E, t_1, ..., t_n, E] that is fed
    length: int


@torch.no_grad()
def score(
    model: LanguageModel,
    corpus: Corpus,
    *,
    context: int | None = None,
    max_tokens: int | None = None,
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
        max_tokens: stop after the document (or the window) with which so many tokens are scored; None scores all.
        batch_size: documents (or windows) read side by side.
        chunk: tokens read at once: memory grows with batch_size · chunk, not with the documents' lengths.
        on_progress: called with (tokens done, tokens in all).

    Returns:
        The scores, by document.

    Raises:
        InputError: context, batch_size or chunk below one, or a vocabulary that is not the model's.
    """
    for name, value in (("context", context), ("batch_size", batch_size), ("chunk", chunk), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    if corpus.tokenizer.vocab_size > model.config.vocab_size:
        raise InputError(
            f"expected tokens of the model's vocabulary of {model.config.vocab_size}, "
            f"got a tokenizer of {corpus.tokenizer.vocab_size}"
        )
    pieces = list(_pieces(corpus, context, max_tokens))
    scored = sorted({piece.document for piece in pieces})
    place = {document: i for i, document in enumerate(scored)}
    bins = position_bins(max((piece.length for piece in pieces), default=1))
    bits = np.zeros((len(scored), len(bins) - 1))
    sizes = np.zeros((len(scored), len(bins) - 1), dtype=np.int64)
    token_bytes = corpus.tokenizer.token_bytes()
    # Windows of like length side by side waste little; the longest first, so that memory is asked for at once.
    pieces.sort(key=lambda piece: -piece.length)
    total, done = sum(piece.length for piece in pieces), 0
    for first in range(0, len(pieces), batch_size):
        group = pieces[first : first + batch_size]
        for start, rows, nats, targets in _read(model, corpus, group, chunk):
            for row, (row_nats, row_targets) in zip(rows, zip(nats, targets, strict=True), strict=True):
                which = np.searchsorted(bins, start + np.arange(len(row_nats)), side="right") - 1
                document = place[group[row].document]
                np.add.at(bits[document], which, row_nats / np.log(2))
                np.add.at(sizes[document], which, token_bytes[row_targets])
                done += len(row_nats)
            on_progress(done, total)
    return Scores(np.array(scored), bits.sum(1), sizes.sum(1), bins, bits, sizes)


def _pieces(corpus: Corpus, context: int | None, max_tokens: int | None) -> Iterator[_Piece]:
    taken = 0
    for document, length in enumerate(corpus.lengths.tolist()):
        for start in range(0, length + 1, context or length + 1):
            if max_tokens is not None and taken >= max_tokens:
                return
            size = min(context or length + 1, length + 1 - start)
            taken += size
            yield _Piece(document, start, size)


def _read(
    model: LanguageModel, corpus: Corpus, group: list[_Piece], chunk: int
) -> Iterator[tuple[int, list[int], list[np.ndarray], list[np.ndarray]]]:
    """Read the pieces of a group side by side; yield (position, rows, nats per row, targets per row) by chunk."""
    device = model.embedding.weight.device
    end = corpus.tokenizer.end_of_document
    state: ModelState | None = None
    rows = list(range(len(group)))
    for start in range(0, max(piece.length for piece in group), chunk):
        alive = [i for i, row in enumerate(rows) if group[row].length > start]
        if state is not None and len(alive) < len(rows):
            state = state.reorder(torch.tensor(alive, device=device))
        rows = [rows[i] for i in alive]
        counts = [min(chunk, group[row].length - start) for row in rows]
        framed = np.full((len(rows), max(counts) + 1), end, dtype=np.int64)
        for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
            piece = group[row]
            at = piece.start + start  # of [E, t_1, ..., t_n, E]
            ids = corpus.document(piece.document)[max(at - 1, 0) : at + count]
            first = int(at == 0)
            framed[i, first : first + len(ids)] = ids
        tokens = torch.from_numpy(framed).to(device)
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        hidden, state = model.hidden(
            tokens[:, :-1], state=state, token_mask=None if bool(mask.all()) else mask.to(device)
        )
        nats = _nats(model.head(hidden), tokens[:, 1:]).cpu().numpy()
        yield (
            start,
            rows,
            [nats[i, :count] for i, count in enumerate(counts)],
            [framed[i, 1 : count + 1] for i, count in enumerate(counts)],
        )


def _nats(logits: Tensor, targets: Tensor) -> Tensor:
    """−ln p of each target: [B, T, vocab], [B, T] -> float64 [B, T]."""
    losses = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32)), targets.flatten(), reduction="none"
    )
    return losses.to("cpu", torch.float64).unflatten(0, targets.shape)
