"""The strict configuration of a training run."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from ..errors import ConfigError
from ..models.config import StrictModel

__all__ = ["TrainingConfig"]


class TrainingConfig(StrictModel):
    """All that decides a training run, beside the model and the data.

    Fields:
        steps: optimiser steps.
        context: tokens of a row.
        batch_size: rows of a micro-batch, on each process.
        accumulate: micro-batches of a step.
        learning_rate: at the end of the warm-up.
        schedule: "cosine" falls from there to `final_rate`; "wsd" stays (warm-up, stable, decay) and falls
            linearly over the last `decay` of the steps (Hu et al. 2024).
        warmup: share of the steps over which the rate rises linearly from 0.
        decay: share of the steps of WSD's last phase.
        final_rate: share of `learning_rate` at the end.
        weight_decay: on the matrices of linear layers; on nothing else.
        betas, eps: of AdamW.
        clip: largest norm of the gradient; 0 does not clip.
        dtype: of the parameters.
        autocast: "bfloat16" runs the matrix products in half precision; "none" does not.
        checkpointing: recompute each block in backward; memory for time.
        carry_state: truncated backpropagation: rows go on through their documents from one step to the next
            with the state of the step before, so that a context longer than memory is trained.
        evaluate_every: steps between evaluations; 0 evaluates at the end only.
        evaluate_tokens: validation tokens of an evaluation.
        save_every: steps between checkpoints; 0 saves at the end (and when interrupted) only.
        validation_fraction: share of the data's tokens that are kept for validation.
        seed: of initialisation and order of the data.
    """

    steps: int = Field(default=1000, ge=1)
    context: int = Field(default=512, ge=1)
    batch_size: int = Field(default=8, ge=1)
    accumulate: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    schedule: Literal["cosine", "wsd"] = "cosine"
    warmup: float = Field(default=0.05, ge=0, le=1)
    decay: float = Field(default=0.2, ge=0, le=1)
    final_rate: float = Field(default=0.1, ge=0, le=1)
    weight_decay: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    clip: float = Field(default=1.0, ge=0)
    dtype: Literal["float32", "float64", "bfloat16"] = "float32"
    autocast: Literal["none", "bfloat16"] = "none"
    checkpointing: bool = False
    carry_state: bool = False
    evaluate_every: int = Field(default=200, ge=0)
    evaluate_tokens: int = Field(default=65536, ge=1)
    save_every: int = Field(default=200, ge=0)
    validation_fraction: float = Field(default=0.05, gt=0, lt=1)
    seed: int = Field(default=0, ge=0)

    @classmethod
    def section(cls) -> str:
        return "[training]"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.warmup + (self.decay if self.schedule == "wsd" else 0) > 1:
            raise ConfigError(
                f"[training]: warmup and decay must not exceed all of the steps, got {self.warmup} and {self.decay}"
            )
        if self.carry_state and self.accumulate > 1:
            raise ConfigError("[training]: carry_state goes with accumulate = 1, since a step must follow the last one")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"[training]: betas must be at least 0 and below 1, got {self.betas}")
        return self
