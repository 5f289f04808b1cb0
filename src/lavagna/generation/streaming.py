"""Generation: read the prompts in chunks, then one token a step from the state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..models import LanguageModel
from .reading import Reading, read
from .sampling import Sampler, Sampling
from .stepping import Stepper

__all__ = ["Generated", "generate", "stream"]


class Generated(NamedTuple):
    """What was generated.

    Fields:
        tokens: int64 [n_r] per row, the end token included where one was reached.
        readings: per row (one row each), after the prompt and all these tokens.
    """

    tokens: list[Tensor]
    readings: list[Reading]


@torch.no_grad()
def stream(
    model: LanguageModel,
    reading: Reading,
    *,
    max_tokens: int,
    sampling: Sampling | None = None,
    end_tokens: frozenset[int] = frozenset(),
    stopped: Callable[[int], bool] = lambda row: False,
    choices: int | None = None,
) -> Iterator[tuple[list[int], list[int], Reading]]:
    """Yield step by step (rows, their new tokens, the reading after these tokens).

    Rows that ended take no part in later steps: a reading has only the rows yielded with it. The next step overwrites
    the memory of its state: who wants to keep it copies it (``fork``, ``reorder``, ``save``) before going on.

    Args:
        model: the language model.
        reading: what was read.
        max_tokens: per row.
        sampling: how to choose; the default draws at temperature 1.
        end_tokens: tokens that end a row.
        stopped: asked after each step whether a row shall end (a stop string was seen, say).
        choices: only the first so many tokens can be chosen, for a model's vocabulary may be padded; None for all.
    """
    if max_tokens < 0:
        raise InputError(f"max_tokens must not be negative, got {max_tokens}")
    rows = list(range(len(reading.logits)))
    sampler = Sampler(sampling or Sampling(), len(rows))
    device = model.embedding.weight.device
    if max_tokens:
        model.gather_pages()
    stepper = Stepper(model, reading.state)
    for _ in range(max_tokens):
        tokens = sampler(reading.logits[:, :choices], rows)
        reading = stepper(tokens.to(device))
        chosen = tokens.tolist()
        yield list(rows), chosen, reading
        alive = [
            i
            for i, (row, token) in enumerate(zip(rows, chosen, strict=True))
            if token not in end_tokens and not stopped(row)
        ]
        if not alive:
            return
        if len(alive) < len(rows):
            rows = [rows[i] for i in alive]
            reading = reading.reorder(torch.tensor(alive, device=device))
            stepper = Stepper(model, reading.state)


def generate(
    model: LanguageModel,
    prompts: list[Tensor],
    *,
    max_tokens: int,
    after: Reading | None = None,
    sampling: Sampling | None = None,
    end_tokens: frozenset[int] = frozenset(),
    prefill_chunk: int = 2048,
) -> Generated:
    """Continue a batch of prompts of any lengths; each row gets what it would get alone with its seed.

    Args:
        model: the language model.
        prompts: int64 [T_r] per row.
        max_tokens: new tokens per row.
        after: an earlier reading that the prompts go on from.
        sampling: how to choose; the default draws at temperature 1.
        end_tokens: tokens that end a row.
        prefill_chunk: prompt tokens read at once.

    Returns:
        The new tokens of each row, and the readings after them.

    Raises:
        InputError: no prompts, or an empty one with nothing read before.
    """
    reading = read(model, prompts, after, prefill_chunk=prefill_chunk)
    tokens: list[list[int]] = [[] for _ in prompts]
    readings: dict[int, Reading] = {}
    rows = list(range(len(prompts)))

    def keep(gone: set[int]) -> None:
        for place, row in enumerate(rows):
            if row in gone:
                readings[row] = reading.reorder(torch.tensor([place], device=reading.logits.device))

    steps = stream(model, reading, max_tokens=max_tokens, sampling=sampling, end_tokens=end_tokens)
    for going, new, after_step in steps:
        keep(set(rows) - set(going))
        for row, token in zip(going, new, strict=True):
            tokens[row].append(token)
        rows, reading = going, after_step
    keep(set(rows))
    return Generated(
        [torch.tensor(row, dtype=torch.int64) for row in tokens], [readings[row] for row in range(len(prompts))]
    )
