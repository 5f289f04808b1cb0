"""What needs no training: a table of which token follows which, and gzip. They tell what a figure is worth."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import numpy as np

from ..data import Corpus
from ..data.packing import Batch
from ..evaluation import Scores, choose_pieces, framed

__all__ = ["BigramTable", "gzip_bits_per_byte"]

MERGED_AT = 1 << 20  # pairs counted at once


class BigramTable:
    """p(t | s) = (n(s, t) + u(s) · p(t)) / (n(s) + u(s)), p(t) = (n(t) + 1) / (n + vocab_size).

    n counts the training text, the ends of documents among it, and u(s) is how many different tokens followed s:
    a token that never followed s gets the more, the more often something new did.

    Args:
        batches: the training text, as models are fed it.
        vocab_size: number of tokens.

    Source: Witten & Bell 1991, method C, interpolated; add-one for single tokens.
    """

    def __init__(self, batches: Iterable[Batch], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.single = np.zeros(vocab_size, dtype=np.int64)
        self.pairs = np.empty(0, dtype=np.int64)  # s · vocab_size + t, sorted
        self.counts = np.empty(0, dtype=np.int64)
        buffer: list[np.ndarray] = []
        for batch in batches:
            before, after = batch.tokens.numpy().ravel(), batch.targets.numpy().ravel()
            self.single += np.bincount(after, minlength=vocab_size)
            buffer.append(before * vocab_size + after)
            if sum(map(len, buffer)) > MERGED_AT:
                self._add(np.concatenate(buffer))
                buffer.clear()
        self._add(np.concatenate([*buffer, np.empty(0, dtype=np.int64)]))
        first = self.pairs // vocab_size
        self.follows = np.bincount(first, self.counts, minlength=vocab_size)
        self.different = np.bincount(first, minlength=vocab_size)

    def _add(self, pairs: np.ndarray) -> None:
        """Count pairs, in memory of about the different ones."""
        found, counts = np.unique(pairs, return_counts=True)
        self.pairs, place = np.unique(np.concatenate([self.pairs, found]), return_inverse=True)
        self.counts = np.bincount(place, np.concatenate([self.counts, counts])).astype(np.int64)

    def probability(self, before: np.ndarray, after: np.ndarray) -> np.ndarray:
        """p(after | before) of each pair: int64 [T], [T] -> float64 [T]."""
        key = before * self.vocab_size + after
        place = np.searchsorted(self.pairs, key).clip(max=len(self.pairs) - 1)
        together = np.where(self.pairs[place] == key, self.counts[place], 0)
        alone = (self.single[after] + 1) / (self.single.sum() + self.vocab_size)
        different = self.different[before]
        seen = self.follows[before] + different
        return np.where(seen > 0, (together + different * alone) / np.maximum(seen, 1), alone)

    def score(
        self, corpus: Corpus, *, context: int | None = None, max_tokens: int | None = None, part: int | None = None
    ) -> Scores:
        """Score what :func:`lavagna.evaluation.score` does with these arguments, position by position apart."""
        pieces, documents = choose_pieces(corpus, context=context, max_tokens=max_tokens, part=part)
        sizes = corpus.tokenizer.token_bytes()
        bits, lengths = np.zeros(len(documents)), np.zeros(len(documents), dtype=np.int64)
        for row, document, start, length in zip(*pieces, strict=True):
            tokens = framed(corpus, document, start, length)
            bits[row] -= np.log2(self.probability(tokens[:-1], tokens[1:])).sum()
            lengths[row] += sizes[tokens[1:]].sum()
        nowhere = np.zeros((len(documents), 0))
        return Scores(documents, bits, lengths, np.zeros(1, np.int64), nowhere, nowhere.astype(np.int64))


def gzip_bits_per_byte(corpus: Corpus) -> float:
    """Bits of ``gzip -9`` by bytes of text, the documents whole and one after another in one file."""
    gzip = zlib.compressobj(9, wbits=31)  # 31: with gzip's header and checksum
    size = read = 0
    for ids in corpus.documents():
        text = corpus.tokenizer.decode(ids)
        read += len(text)
        size += len(gzip.compress(text))
    return 8 * (size + len(gzip.flush())) / read
