"""What a model knows after it has read something: its state and its logits for the next token."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, StateError
from ..models import LanguageModel, ModelState

__all__ = ["Reading", "read"]


class Reading(NamedTuple):
    """The state after what was read, and what the model expects next.

    Fields:
        state: of B rows.
        logits: [B, vocab], for the token after the last real one of each row.
    """

    state: ModelState
    logits: Tensor

    def fork(self, n: int) -> Reading:
        """Each row n times: rows 0, 0, ..., 1, 1, ..."""
        return Reading(self.state.fork(n), self.logits.repeat_interleave(n, 0))

    def reorder(self, index: Tensor) -> Reading:
        """Row i of the result is row index[i]."""
        return Reading(self.state.reorder(index), self.logits.index_select(0, index))

    def save(self, path: str | os.PathLike[str], model: LanguageModel) -> None:
        """Write a file from which another process goes on."""
        self.state.save(path, model, logits=self.logits)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: LanguageModel) -> Reading:
        """Read what :meth:`save` wrote.

        Raises:
            StateError: the file is missing, is no reading, or another configuration made it.
        """
        state, logits = ModelState.load_with_logits(path, model)
        if logits is None:
            raise StateError(f"{os.fspath(path)!r} holds a state without the logits that generation goes on from")
        return cls(state, logits)


@torch.no_grad()
def read(
    model: LanguageModel,
    prompts: list[Tensor],
    after: Reading | None = None,
    *,
    prefill_chunk: int = 2048,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Reading:
    """Read one prompt per row, in chunks, going on from an earlier reading.

    Args:
        model: the language model.
        prompts: int64 [T_r] per row, of any lengths. Empty only where `after` says what was read before.
        after: an earlier reading of as many rows.
        prefill_chunk: tokens read at once; memory grows with it, results do not depend on it.
        on_progress: called with (tokens of the longest prompt read, its length).

    Returns:
        The state after all of it, and the logits for the next token.

    Raises:
        InputError: no prompts, an empty one at the start, or another number of rows.
    """
    if prefill_chunk < 1:
        raise InputError(f"prefill_chunk must be at least 1, got {prefill_chunk}")
    if not prompts:
        raise InputError("expected at least one prompt, got none")
    lengths = torch.tensor([len(p) for p in prompts])
    if after is None and int(lengths.min()) == 0:
        raise InputError("expected at least one token in each prompt, got an empty one")
    if after is not None and len(after.logits) != len(prompts):
        raise InputError(f"expected {len(after.logits)} prompts, one for each row read before, got {len(prompts)}")
    device = model.embedding.weight.device
    tokens = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True).to(device)
    column = torch.arange(tokens.shape[1])
    state = None if after is None else after.state
    logits = None if after is None else after.logits
    for start in range(0, tokens.shape[1], prefill_chunk):
        stop = min(start + prefill_chunk, tokens.shape[1])
        counts = (lengths - start).clamp(0, stop - start)
        mask = None
        if int(counts.min()) < stop - start:
            mask = (column[start:stop] < lengths[:, None]).to(device)
        hidden, state = model.hidden(tokens[:, start:stop], state=state, token_mask=mask)
        last = hidden[torch.arange(len(prompts), device=device), (counts.to(device) - 1).clamp(min=0)]
        fresh = model.head(last)
        here = (counts > 0).to(device)[:, None]
        logits = fresh if logits is None else torch.where(here, fresh, logits.to(device))
        on_progress(stop, tokens.shape[1])
    assert state is not None
    assert logits is not None
    return Reading(state, logits)
