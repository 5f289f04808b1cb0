"""Padding changes nothing: not the outputs of real tokens, not the state behind them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject

__all__ = ["padding_attended", "state_after_padding"]

#: lengths of rows, and how much longer than the longest the batch is
BATCHES = (
    ((1,), 1),
    ((2,), 1),
    ((3,), 2),
    ((2, 1), 0),
    ((3, 1), 0),
    ((5, 2), 3),
    ((4, 7, 1), 9),
    ((20, 67), 0),
    ((60, 5), 70),
)


class _Padded:
    """Rows of different lengths in one batch, something else standing at the padding."""

    def __init__(self, subject: Subject, lengths: tuple[int, ...], more: int, side: str) -> None:
        self.lengths = lengths
        self.tokens = max(lengths) + more
        place = torch.arange(self.tokens)
        length = torch.tensor(lengths)[:, None]
        self.mask = place < length if side == "right" else place >= self.tokens - length
        self.rows = [subject.make(1, n, seed=row + 1) for row, n in enumerate(lengths)]
        self.x = subject.make(len(lengths), self.tokens)
        for row, real in enumerate(self.rows):
            self.x[row, self.mask[row]] = real[0]

    def real(self, output: Tensor) -> Tensor:
        """The outputs of real tokens, row after row."""
        return torch.cat([output[row, self.mask[row]] for row in range(len(self.lengths))])


def _batches(subject: Subject) -> Iterator[tuple[_Padded, str]]:
    if not subject.adapter.takes_mask:
        raise NotApplicable("it takes no mask of real tokens")
    sides = ("left", "right") if subject.adapter.left_padding else ("right",)
    for lengths, more in sorted(BATCHES, key=lambda b: (max(b[0]) + b[1], len(b[0]))):
        for side in sides:
            if subject.max_tokens is None or max(lengths) + more < subject.max_tokens:
                yield _Padded(subject, lengths, more, side), side


def _example(batch: _Padded, side: str, what: str) -> Example:
    lengths = " and ".join(map(str, batch.lengths))
    return Example(batch.tokens, len(batch.lengths), f"{what}; {lengths} real, padded on the {side}")


def padding_attended(subject: Subject) -> Iterator[Measurement]:
    """A padded batch gives real tokens what each row gives alone, without padding."""
    for batch, side in _batches(subject):
        alone = torch.cat([subject.run(row).output[0] for row in batch.rows])
        padded = batch.real(subject.run(batch.x, mask=batch.mask).output)
        yield Measurement(difference(padded, alone), subject.tolerance, _example(batch, side, "outputs of real tokens"))


def state_after_padding(subject: Subject) -> Iterator[Measurement]:
    """Reading on from a padded batch gives what reading on from each row alone gives."""
    if not subject.takes_state:
        raise NotApplicable("it returns no state")
    for batch, side in _batches(subject):
        following = subject.make(len(batch.lengths), 1, seed=9)
        alone = []
        for row, x in enumerate(batch.rows):
            state = subject.read(x).state
            alone.append(subject.read(following[row : row + 1], state).output)
        state = subject.read(batch.x, mask=batch.mask).state
        after = subject.read(following, state).output
        yield Measurement(
            difference(after, torch.cat(alone)), subject.tolerance, _example(batch, side, "the token after the batch")
        )
