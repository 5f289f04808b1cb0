"""Choosing the next token from logits: temperature, top-k, top-p, min-p, each row by its own generator."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from ..errors import NonFiniteError
from ..models.config import StrictModel

__all__ = ["Sampler", "Sampling"]


class Sampling(StrictModel):
    """How the next token is chosen.

    Fields:
        temperature: logits are divided by it; 0 takes the likeliest token (greedy).
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest likeliest tokens whose probabilities reach p (Holtzman et al. 2020).
        min_p: keep tokens of at least min_p times the likeliest one's probability (Nguyen et al. 2024).
        seed: row r draws from a generator of seed + r, so that what it gets does not depend on its neighbours.

    The filters act one after the other, in the order of these fields, on the probabilities at this temperature.
    """

    temperature: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, ge=0, le=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def section(cls) -> str:
        return "sampling"


class Sampler:
    """Draws tokens for the rows of a batch.

    Args:
        sampling: how to choose.
        rows: number of rows, each with its own generator.
    """

    def __init__(self, sampling: Sampling, rows: int) -> None:
        self.sampling = sampling
        # On the CPU whatever the model's device, so that a seed gives the same draws everywhere.
        self.generators = [torch.Generator().manual_seed(sampling.seed + row) for row in range(rows)]

    def __call__(self, logits: Tensor, rows: list[int]) -> Tensor:
        """Choose one token for each of `rows`: logits [n, vocab] -> int64 [n]."""
        logits = logits.detach().to("cpu", torch.promote_types(logits.dtype, torch.float32))
        if not bool(torch.isfinite(logits.amax(-1)).all()):
            raise NonFiniteError("expected finite logits to choose a token from, got NaN or infinity")
        if self.sampling.temperature == 0:
            return logits.argmax(-1)
        weights = self._filtered(logits)
        draws = [_draw(w, self.generators[row]) for w, row in zip(weights, rows, strict=True)]
        return torch.cat(draws) if draws else torch.empty(0, dtype=torch.int64)

    def _filtered(self, logits: Tensor) -> Tensor:
        options = self.sampling
        if options.temperature != 1:
            # Subtracting the maximum first: a tiny temperature would overflow otherwise.
            logits = (logits - logits.amax(-1, keepdim=True)) / options.temperature
        probabilities = logits.softmax(-1)
        if options.top_k is not None:
            count = min(options.top_k, probabilities.shape[-1])
            probabilities = _likeliest(probabilities, torch.full_like(probabilities[:, :1], count, dtype=torch.int64))
        if options.top_p is not None:
            probabilities = _likeliest(probabilities, _needed(probabilities, options.top_p))
        if options.min_p is not None:
            least = options.min_p * probabilities.amax(-1, keepdim=True)
            probabilities = probabilities.masked_fill(probabilities < least, 0)
        return probabilities


def _draw(weights: Tensor, generator: torch.Generator) -> Tensor:
    """One index of `weights` [n], each as likely as its share: int64 [1].

    The place of one uniform number among the running sums; torch.multinomial draws a number for each weight.
    """
    sums = weights.double().cumsum(-1)
    at = sums[-1:] * torch.rand(1, generator=generator, dtype=torch.float64)
    # What rounding lifts to the sum of all belongs to the last weight above zero.
    return torch.searchsorted(sums, at, right=True).minimum(torch.searchsorted(sums, sums[-1:]))


def _needed(probabilities: Tensor, share: float) -> Tensor:
    """How few of the likeliest reach this share of all: [n, vocab] -> int64 [n, 1]."""
    total = probabilities.sum(-1, keepdim=True)
    size, count = probabilities.shape[-1], 32
    while True:  # few do as a rule, and to sort all of a large vocabulary takes longer than a small model's step
        count = min(8 * count, size)
        largest = probabilities.topk(count).values
        needed = (largest.cumsum(-1) - largest < share * total).sum(-1, keepdim=True)
        if count == size or bool((needed < count).all()):
            return needed


def _likeliest(probabilities: Tensor, count: Tensor) -> Tensor:
    """Keep the `count` [n, 1] largest of each row, the earlier of equal ones, and set the others to zero."""
    largest = probabilities.topk(int(count.max())).values if len(count) else probabilities
    least = largest.gather(-1, count - 1)
    equal = probabilities == least
    above = probabilities > least
    kept = above | (equal & (equal.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    return probabilities.masked_fill(~kept, 0)
