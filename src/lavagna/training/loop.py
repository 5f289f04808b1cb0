"""The training loop."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ..data import Corpus, PackedBatches, StreamBatches
from ..data.packing import Batch
from ..errors import ConfigError, NonFiniteError
from ..evaluation import score
from ..files import atomic_folder
from ..models import LanguageModel, ModelState
from .checkpoint import (
    CHECKPOINTS,
    checkpoint_folder,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    write_record,
)
from .config import TrainingConfig
from .diagnosis import first_non_finite
from .interruption import Interruption, interruptible
from .loss import BatchLoss
from .metrics import METRICS, Metrics
from .optimizer import learning_rate, make_optimizer
from .parallel import World
from .run import MODEL

__all__ = ["Finished", "check_free", "make_batches", "train"]

Observer = Callable[[Mapping[str, Any]], None]
Progress = Callable[[int, int], None]


class Finished(NamedTuple):
    """How a run ended.

    Fields:
        step: steps done.
        interrupted: the signal that stopped it, or None at the end of the steps.
        model: folder of the trained model, or the last checkpoint of an interrupted run (None before its first step).
        bits_per_byte: of the last evaluation; NaN if there was none.
    """

    step: int
    interrupted: int | None
    model: Path | None
    bits_per_byte: float


def train(
    model: LanguageModel,
    training: Corpus,
    validation: Corpus,
    config: TrainingConfig,
    run: Path,
    *,
    resume: bool = False,
    device: torch.device | str = "cpu",
    world: World | None = None,
    observe: Observer = lambda line: None,
    evaluating: Progress = lambda done, total: None,
) -> Finished:
    """Train a language model.

    Args:
        model: trained in place; moved to `device` and to the configured dtype.
        training, validation: parts of a corpus.
        config: how.
        run: folder that gets ``metrics.jsonl``, ``checkpoints/step-N`` and, at the end, ``model``.
        resume: go on from the last checkpoint in `run`, exactly as if it had not stopped; from the start if
            there is none.
        device: "cpu", "cuda", "mps".
        world: this process among those that train together.
        observe: called with every line of metrics, in the process that leads.
        evaluating: called with (tokens done, tokens in all) during an evaluation, in the process that leads.

    Returns:
        How it ended.

    Raises:
        ConfigError: `run` holds a run and `resume` was not asked for, or it was made with other settings.
        DataError: the data is shorter than one context.
        NonFiniteError: the loss or the gradient stopped being finite; the message names the step, the learning
            rate, the first layer whose output is not finite, and the last good checkpoint.
    """
    world = world or World()
    device = torch.device(device)
    check_free(run, resume)
    run.mkdir(parents=True, exist_ok=True)
    return _Run(model, training, validation, config, run, device, world, observe, evaluating).go(resume)


def check_free(run: Path, resume: bool) -> None:
    """Refuse to begin a run where there is one already.

    Raises:
        ConfigError: `run` holds a run and `resume` was not asked for.
    """
    if not resume and ((run / METRICS).exists() or (run / CHECKPOINTS).exists()):
        raise ConfigError(f"{str(run)!r} already holds a run: resume it (--resume), or choose another folder")


def make_batches(corpus: Corpus, config: TrainingConfig, world: World) -> PackedBatches | StreamBatches:
    """The batches of this process.

    Raises:
        DataError: the data is shorter than one context.
    """
    kind = StreamBatches if config.carry_state else PackedBatches
    return kind(corpus, config.context, config.batch_size, config.seed, rank=world.rank, world_size=world.size)


class _Stopped(Exception):
    """An evaluation was left because a stop was asked for."""


class _Run:
    """What the steps of one run share."""

    def __init__(
        self,
        model: LanguageModel,
        training: Corpus,
        validation: Corpus,
        config: TrainingConfig,
        run: Path,
        device: torch.device,
        world: World,
        observe: Observer,
        evaluating: Progress,
    ) -> None:
        self.config, self.run, self.device, self.world = config, run, device, world
        self.observe, self.evaluating = observe, evaluating
        self.model = model.to(device, getattr(torch, config.dtype)).train()
        self.model.checkpointing = config.checkpointing
        self.validation = validation
        self.tokenizer = training.tokenizer
        self.batches = make_batches(training, config, world)
        self.optimizer = make_optimizer(self.model, config)
        self.module: nn.Module = BatchLoss(self.model)
        if world.size > 1:
            ids = [device.index or 0] if device.type == "cuda" else None
            self.module = DistributedDataParallel(self.module, device_ids=ids)
        self.record = {
            **{f"training.{k}": v for k, v in config.model_dump(mode="json").items() if k != "save_every"},
            **{f"model.{k}": v for k, v in model.config.model_dump(mode="json").items()},
            "data": training.fingerprint,
            "processes": world.size,
        }
        self.state: ModelState | None = None
        self.last_saved: Path | None = None

    def go(self, resume: bool) -> Finished:
        """All steps, from the last checkpoint if there is one to resume."""
        done = 0
        checkpoint = latest_checkpoint(self.run) if resume else None
        if checkpoint is not None:
            done, self.state = load_checkpoint(
                checkpoint,
                model=self.model,
                optimizer=self.optimizer,
                record=self.record,
                rank=self.world.rank,
            )
            self.last_saved = checkpoint
        self.metrics = Metrics(self.run, done, writes=self.world.leads)
        self.world.wait()
        with interruptible() as asked:
            if done:
                self.evaluate_if_due(done, asked)
            for step in range(done, self.config.steps):
                if self.stopping(asked):
                    break
                self.emit(self.step(step))
                done = step + 1
                self.evaluate_if_due(done, asked)
                if done == self.config.steps or (self.config.save_every and done % self.config.save_every == 0):
                    self.save(done)
            if self.stopping(asked):
                if done and self.last_saved != checkpoint_folder(self.run, done):
                    self.save(done)
                return Finished(done, asked.signal or signal.SIGTERM, self.last_saved, self.metrics.bits_per_byte)
        folder = self.run / MODEL
        if self.world.leads:
            with atomic_folder(folder) as temporary:
                self.model.write(temporary)
                self.tokenizer.save(temporary)
                write_record(temporary, done, self.record)
        self.world.wait()
        return Finished(done, None, folder, self.metrics.bits_per_byte)

    def stopping(self, asked: Interruption) -> bool:
        """Whether any process was asked to stop: all of them must save at the same step."""
        return self.world.any(asked.signal is not None, self.device)

    # --- one step -------------------------------------------------------------------------------------------

    def step(self, step: int) -> dict[str, Any]:
        """One optimiser step; returns its line of metrics."""
        begin = time.perf_counter()
        config = self.config
        micro = [self.batches.at(step * config.accumulate + i).to(self.device) for i in range(config.accumulate)]
        # Ranks and micro-batches may hold different numbers of real tokens: each counts by its share of all.
        weight = self.world.sum(torch.stack([batch.weights.sum() for batch in micro]).sum())
        tokens = int(weight)
        rate = learning_rate(step, config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        before = self.carried(micro[0])
        total = torch.zeros((), device=self.device)
        for i, batch in enumerate(micro):
            with ExitStack() as stack:
                if i + 1 < len(micro) and isinstance(self.module, DistributedDataParallel):
                    stack.enter_context(self.module.no_sync())
                loss, after = self.loss(batch, before)
                # The loss does not depend on the last state; its graph would be memory that backward never frees.
                carried = after.detach() if config.carry_state else None
                del after
                # Data parallelism averages gradients over the processes; the loss is a sum over all of them.
                (loss * (self.world.size / weight)).backward()
            total = total + loss.detach()
        total = self.world.sum(total) / weight
        parameters = list(self.model.parameters())
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        values = [total.item(), norm.item()]
        if not all(map(math.isfinite, values)):
            self.refuse(step, rate, values, micro, before)
        if config.clip:
            nn.utils.clip_grads_with_norm_(parameters, config.clip, norm)
        self.optimizer.step()
        self.state = carried
        seconds = time.perf_counter() - begin
        return {
            "step": step + 1,
            "loss": values[0],
            "gradient_norm": values[1],
            "learning_rate": rate,
            "tokens": tokens,
            "seconds": seconds,
            "tokens_per_second": tokens / seconds,
        }

    def carried(self, batch: Batch) -> ModelState | None:
        """The state that this step's rows go on from."""
        if self.state is None or batch.reset is None:
            return None
        return self.state.reset(batch.reset)

    def loss(self, batch: Batch, state: ModelState | None) -> tuple[Tensor, ModelState]:
        """The summed loss of a micro-batch, and the state after it."""
        half = self.config.autocast == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16) if half else nullcontext():
            return self.module(batch, state)

    def refuse(
        self, step: int, rate: float, values: list[float], micro: list[Batch], before: ModelState | None
    ) -> None:
        """Stop because loss or gradient are not finite."""
        where = first_non_finite(self.model, lambda: [BatchLoss(self.model)(batch, before) for batch in micro])
        good = f"the last good checkpoint is {str(self.last_saved)!r}" if self.last_saved else "no checkpoint was saved"
        raise NonFiniteError(
            f"loss {values[0]} with gradient norm {values[1]} at step {step + 1}, learning rate {rate:.3g}; "
            f"first not finite: {where}; {good}"
        )

    # --- between steps --------------------------------------------------------------------------------------

    def evaluate_if_due(self, done: int, asked: Interruption) -> None:
        """Evaluate on the validation part, if this step is one of those and it was not done before.

        A stop asked for meanwhile leaves no line: the resumed run evaluates again.
        """
        every = self.config.evaluate_every
        due = done == self.config.steps or (every and done % every == 0)
        if not due or done in self.metrics.evaluated:
            return

        def show(tokens: int, total: int) -> None:
            if asked.signal is not None:
                raise _Stopped
            self.evaluating(tokens, total)

        begin = time.perf_counter()
        bits_per_byte = math.nan
        if self.world.leads:
            self.model.eval()
            with suppress(_Stopped):
                bits_per_byte = score(
                    self.model,
                    self.validation,
                    context=None if self.config.carry_state else self.config.context,
                    max_tokens=self.config.evaluate_tokens,
                    batch_size=self.config.batch_size,
                    on_progress=show,
                ).bits_per_byte
            self.model.train()
        if not self.stopping(asked):
            seconds = time.perf_counter() - begin
            self.emit({"step": done, "validation_bits_per_byte": bits_per_byte, "seconds": seconds})

    def emit(self, line: Mapping[str, Any]) -> None:
        """Write a line of metrics and show it."""
        self.metrics.write(line)
        if self.world.leads:
            self.observe(line)

    def save(self, done: int) -> None:
        """Write a checkpoint, which every process then knows."""
        states = self.world.gather(self.state if self.state is None else self.state.to("cpu"))
        if self.world.leads:
            save_checkpoint(
                self.run,
                step=done,
                model=self.model,
                tokenizer=self.tokenizer,
                optimizer=self.optimizer,
                states=states,
                record=self.record,
            )
        self.last_saved = checkpoint_folder(self.run, done)
        self.world.wait()
