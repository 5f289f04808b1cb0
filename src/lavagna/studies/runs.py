"""Runs of training: the search for each candidate's learning rate, and the runs that are compared."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError, NonFiniteError
from ..files import atomic_folder
from ..models import LanguageModel
from ..training import Finished, read_metrics, train
from .stages import Tick
from .study import MODELS, Study

__all__ = ["Interrupted", "choose_rate", "refuse_interrupted", "train_run"]


class Interrupted(Exception):
    """A run was stopped by a signal and has saved what it did."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.signal = number


def refuse_interrupted(finished: Finished) -> None:
    """Raise Interrupted if a run was stopped."""
    if finished.interrupted is not None:
        raise Interrupted(finished.interrupted)


def choose_rate(study: Study, i: int) -> dict[str, Any]:
    """Try each learning rate for a candidate on a prefix; equal candidates share what was found.

    Returns:
        chosen: the rate with the fewest bits per byte on the text kept for this choice.
        tried: rate, bits_per_byte or None, and the reason for None.
        edge: "lowest" or "highest" if it was that one of several; else None.

    Raises:
        ConfigError: training diverged at every rate.
    """
    config, first = study.config, study.first_equal(i)
    rates = sorted(config.learning_rates)
    if len(rates) == 1:
        return {"chosen": rates[0], "tried": [], "edge": None}
    steps = config.steps(config.search)
    name, folder = study.candidates[i].name, study.candidates[first].folder

    def attempt(rate: float, tick: Tick) -> dict[str, Any]:
        run = study.work / "search" / f"{folder}-{rate:g}"
        try:
            finished = _run(study, first, 0, steps, rate, run, tick)
            bits, reason = finished.bits_per_byte, None
        except NonFiniteError as error:
            bits, reason = None, str(error)
        shutil.rmtree(run)
        return {"rate": rate, "bits_per_byte": bits, "reason": reason}

    def outcome(found: Mapping[str, Any]) -> str:
        return "diverged" if found["bits_per_byte"] is None else f"{found['bits_per_byte']:.3f} bits per byte"

    work = steps * config.context * config.batch_size if first == i else 0
    tried = [
        study.stages.once(f"{folder}, trying learning rate {rate:g}", work, partial(attempt, rate), outcome)
        for rate in rates
    ]
    finite = [found for found in tried if found["bits_per_byte"] is not None]
    if not finite:
        raise ConfigError(f"{name!r} diverges at every learning rate, the lowest being {rates[0]:g}: try lower ones")
    best = min(finite, key=lambda found: found["bits_per_byte"])["rate"]
    edge = "lowest" if best == rates[0] else "highest" if best == rates[-1] else None
    return {"chosen": best, "tried": tried, "edge": edge}


def train_run(study: Study, i: int, seed: int, rate: float) -> dict[str, Any]:
    """Train a candidate to the end; its first run's model is what ``models/NAME`` gets.

    Returns:
        The tokens of each step and its loss in bits per token.
    """
    config, run = study.config, study.run_folder(i, seed)

    def go(tick: Tick) -> dict[str, Any]:
        try:
            finished = _run(study, i, seed, config.steps(), rate, run, tick)
        except NonFiniteError as error:
            raise NonFiniteError(f"{study.candidates[i].name}: {error}; give lower learning rates") from None
        if seed == 0:
            _publish(study, i, finished)
        lines = [line for line in read_metrics(run) if "loss" in line]
        bits = [line["loss"] / math.log(2) for line in lines]
        return {"tokens": [line["tokens"] for line in lines], "bits": bits}

    def outcome(found: Mapping[str, Any]) -> str:
        return f"{np.mean(found['bits'][-20:]):.3f} bits per token at the end"

    work = config.steps() * config.context * config.batch_size
    found = study.stages.once(study.title(i, "training", seed), work, go, outcome)
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return found


def _run(study: Study, i: int, seed: int, steps: int, rate: float, run: Path, tick: Tick) -> Finished:
    """Train, going on where an earlier call stopped.

    The order of the data is the seed's, the same for all candidates; the initialisation is each one's own, so that
    two equal candidates differ as two runs do.
    """
    model = LanguageModel(study.sizes[i].config, seed=seed * len(study.candidates) + i)
    config = study.config.run_config(steps=steps, learning_rate=rate, seed=seed)
    # So that `lavagna evaluate` finds the text that this study held out.
    config = config.model_copy(update={"validation_fraction": study.held_out_share})

    def observe(line: Mapping[str, Any]) -> None:
        if "loss" in line:
            tick(line["step"] / steps, f"loss {line['loss']:.3f}, {line['tokens_per_second']:,.0f} tokens/s")

    training, tune, _ = study.data
    finished = train(model, training, tune, config, run, resume=True, device=study.device, observe=observe)
    refuse_interrupted(finished)
    return finished


def _publish(study: Study, i: int, finished: Finished) -> None:
    assert finished.model is not None
    with atomic_folder(study.folder / MODELS / study.candidates[i].folder) as temporary:
        shutil.copytree(finished.model, temporary, dirs_exist_ok=True)
