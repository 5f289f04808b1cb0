"""Everything that was asked of a comparison, and the settings of the demo."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Self

from pydantic import Field, model_validator

from ..errors import ConfigError
from ..models.config import LanguageModelConfig, StrictModel
from ..training import DataConfig, TrainingConfig
from .candidates import parse_candidates

__all__ = ["DEMO", "TOKENS_PER_PARAMETER", "CompareConfig"]

#: about what a model of a given size can make use of (Hoffmann et al. 2022)
TOKENS_PER_PARAMETER = 20

#: keys of [training] that the comparison sets itself, and by which of its own
GOVERNED = {
    "steps": "tokens",
    "context": "context",
    "batch_size": "batch_size",
    "learning_rate": "learning_rates",
    "seed": "seeds",
    "validation_fraction": "held_out",
    "evaluate_every": "evaluate_tokens",
    "evaluate_tokens": "evaluate_tokens",
    "save_every": "tokens",
    "carry_state": "context",
    "accumulate": "batch_size",
}
#: keys of [model] that are solved for, or follow from the data
SOLVED = ("vocab_size", "width", "layers")


class CompareConfig(StrictModel):
    """All that decides a comparison.

    Fields:
        candidates: comma-separated patterns of layers.
        parameters: of each model, about.
        depth: blocks of a mixer and an MLP to which a pattern is repeated; a block without MLP counts as half of one.
        tokens: that each run is trained on; None for 20 per parameter.
        context: tokens of a row.
        batch_size: rows of a step.
        learning_rates: tried on a short prefix; a single one is taken as it is.
        search: share of `tokens` that each learning rate is tried on.
        seeds: runs of each candidate.
        held_out, tune: shares of the data for the verdict, and for choosing the learning rate; smaller where the data
            are very large.
        evaluate_tokens: held-out tokens that are scored, at most; a quarter as many to choose the learning rate.
        beyond: up to how many times `context` quality is measured by position.
        read_lengths: tokens read before generation is measured.
        rounds: of the measurements of speed.
        model: fields of LanguageModelConfig for all candidates (options of a mixer act where it is used).
        training: fields of TrainingConfig for all runs.
        data: where the text comes from.
    """

    candidates: str = "attention,mamba,gated_deltanet,3*gated_deltanet+attention"
    parameters: int = Field(default=300_000, ge=1)
    depth: int = Field(default=4, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    context: int = Field(default=512, ge=1)
    batch_size: int = Field(default=8, ge=1)
    learning_rates: tuple[float, ...] = (1e-3, 3e-3, 1e-2)
    search: float = Field(default=0.1, gt=0, le=1)
    seeds: int = Field(default=1, ge=1)
    held_out: float = Field(default=0.1, gt=0, lt=1)
    tune: float = Field(default=0.05, gt=0, lt=1)
    evaluate_tokens: int = Field(default=500_000, ge=1)
    beyond: int = Field(default=4, ge=1)
    read_lengths: tuple[int, ...] = (256, 1024, 4096, 16384)
    rounds: int = Field(default=5, ge=1)
    model: dict[str, Any] = Field(default={})
    training: dict[str, Any] = Field(default={})
    data: DataConfig = DataConfig()

    @classmethod
    def section(cls) -> str:
        return "compare"

    @model_validator(mode="after")
    def _check(self) -> Self:
        for candidate in parse_candidates(self.candidates):
            # A mistyped mixer is refused here, before long data are read.
            LanguageModelConfig.parse({"vocab_size": 1, "width": 8, "layers": candidate.pattern})
        rates = self.learning_rates
        if not rates or len(set(rates)) < len(rates) or not all(0 < rate < float("inf") for rate in rates):
            raise ConfigError(f"compare: learning_rates must be different numbers above 0, got {list(rates)}")
        reads = self.read_lengths
        if not reads or reads[0] < 1 or any(a >= b for a, b in pairwise(reads)):
            raise ConfigError(f"compare: read_lengths must grow from at least 1, got {list(reads)}")
        if self.held_out + self.tune >= 1:
            raise ConfigError(
                f"compare: held_out and tune must leave something to train on, got {self.held_out} and {self.tune}"
            )
        for key in self.model:
            if key in SOLVED:
                raise ConfigError(f"[model]: {key} is solved for each candidate and cannot be given")
        if self.model.get("position") == "learned":
            raise ConfigError(
                "[model]: position: expected none or sinusoidal, since learned positions end and models are measured "
                "past the trained context, got 'learned'"
            )
        for key in self.training:
            if key in GOVERNED:
                raise ConfigError(f"[training]: {key} follows from {GOVERNED[key]} here and cannot be given")
        self.run_config(steps=1, learning_rate=1.0, seed=0)
        LanguageModelConfig.parse({"vocab_size": 1, "width": 8, "layers": "attention", **self._shared()})
        return self

    def _shared(self) -> dict[str, Any]:
        """[model] without what names mixers or MLPs, which is checked with each candidate."""
        return {key: value for key, value in self.model.items() if key not in ("mixers", "mlps", "mlp")}

    @property
    def run_tokens(self) -> int:
        """Tokens that each run is trained on."""
        return self.tokens or TOKENS_PER_PARAMETER * self.parameters

    def steps(self, share: float = 1.0) -> int:
        """Optimiser steps that read a share of these tokens."""
        return max(round(share * self.run_tokens / (self.context * self.batch_size)), 1)

    def run_config(self, *, steps: int, learning_rate: float, seed: int) -> TrainingConfig:
        """The settings of one run."""
        return TrainingConfig.parse(
            {
                **self.training,
                "steps": steps,
                "learning_rate": learning_rate,
                "seed": seed,
                "context": self.context,
                "batch_size": self.batch_size,
                "evaluate_every": 0,
                "evaluate_tokens": max(self.evaluate_tokens // 4, 1),
                "save_every": SAVE_EVERY,
            }
        )


SAVE_EVERY = 250  # steps: what a crash can cost

#: ``lavagna compare --demo``: at most five minutes on two cores
DEMO: dict[str, Any] = {
    "parameters": 1_000_000,
    "depth": 4,
    # Every candidate is well past the table of token pairs then. On two idle cores the whole takes three minutes with
    # the native kernels.
    "tokens": 500_000,
    "context": 256,
    "batch_size": 4,
    # One rate for all, not searched for: all four learn steadily with it.
    "learning_rates": (3e-3,),
    "evaluate_tokens": 100_000,
    "read_lengths": (256, 1024, 4096),
    "rounds": 3,
}
