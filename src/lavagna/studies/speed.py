"""Speeds as ratios: short rounds that alternate between the candidates in one process, so that what slows the
machine down for a while slows down all of them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data import Corpus
from ..generation import Reading, read, stream
from ..models import LanguageModel
from ..ops.dispatch import automatic
from ..training import Finished, TrainingConfig, train

__all__ = ["generation_speeds", "spread", "training_speeds"]

STEPS = 4  # timed in each round, after one that is not
NEW_TOKENS = 32  # generated in each round

Name = str


def training_speeds(
    models: Mapping[Name, LanguageModel],
    training: Corpus,
    validation: Corpus,
    config: TrainingConfig,
    *,
    rounds: int,
    scratch: Path,
    impls: Sequence[str] = ("auto",),
    device: torch.device | str = "cpu",
    finished: Callable[[Finished], None] = lambda finished: None,
    tick: Callable[[float], None] = lambda share: None,
) -> dict[Name, dict[str, list[float]]]:
    """Tokens per second of a few steps of the training loop, optimiser included, in each round.

    Args:
        models: by candidate; trained on.
        training, validation, config: as for :func:`lavagna.training.train`.
        rounds: how often each is measured.
        scratch: where the runs may leave files for a moment.
        impls: what executes the operators, each measured in every round; see :func:`lavagna.ops.dispatch.automatic`.
        device: "cpu", "cuda", "mps".
        finished: told how each short run ended; may raise.
        tick: called with the share that is done.

    Returns:
        By candidate and impl: one speed for each round.
    """
    config = config.model_copy(update={"steps": STEPS + 1, "evaluate_tokens": 1, "save_every": 0})
    speeds: dict[Name, dict[str, list[float]]] = {name: {impl: [] for impl in impls} for name in models}
    for turn in range(rounds):
        for place, (name, model) in enumerate(models.items()):
            for impl in impls:
                lines: list[Mapping[str, Any]] = []
                with automatic(impl), tempfile.TemporaryDirectory(dir=scratch) as run:
                    finished(train(model, training, validation, config, Path(run), device=device, observe=lines.append))
                timed = [line for line in lines if "loss" in line][1:]
                speed = sum(line["tokens"] for line in timed) / sum(line["seconds"] for line in timed)
                speeds[name][impl].append(speed)
            tick((turn + (place + 1) / len(models)) / rounds)
    return speeds


def generation_speeds(
    models: Mapping[Name, LanguageModel],
    tokens: Tensor,
    lengths: Sequence[int],
    *,
    rounds: int,
    tick: Callable[[float], None] = lambda share: None,
) -> dict[Name, list[dict[str, Any]]]:
    """Bytes of the state after reading, and tokens per second of generation from there, at growing lengths.

    Args:
        models: by candidate.
        tokens: int64 [T], what is read; T at least the longest length.
        lengths: tokens read, growing.
        rounds: how often each is measured at each length.
        tick: called with the share that is done.

    Returns:
        By candidate and length: ``{"context", "state_bytes", "tokens_per_second": one for each round}``.
    """
    found: dict[Name, list[dict[str, Any]]] = {name: [] for name in models}
    readings: dict[Name, Reading] = {}
    start = 0
    for length in lengths:
        for name, model in models.items():
            readings[name] = read(model, [tokens[start:length]], readings.get(name))
            found[name].append({"context": length, "state_bytes": readings[name].state.nbytes, "tokens_per_second": []})
            tick(length / lengths[-1] / 2)
        for turn in range(rounds + 1):
            for name, model in models.items():
                begin = time.perf_counter()
                for _ in stream(model, readings[name], max_tokens=NEW_TOKENS):
                    pass
                if turn:  # the first round warms up
                    seconds = time.perf_counter() - begin
                    found[name][-1]["tokens_per_second"].append(NEW_TOKENS / seconds)
        start = length
        tick(length / lengths[-1])
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of a figure measured in several rounds."""
    if len(values) == 1:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}
