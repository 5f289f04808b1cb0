"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
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
from .checkpoint import CHECKPOINTS, latest_checkpoint, load_checkpoint, save_checkpoint
from .config import TrainingConfig
from .diagnosis import first_non_finite
from .interruption import interruptible
from .loss import BatchLoss
from .metrics import METRICS, Metrics
from .optimizer import learning_rate, make_optimizer
from .parallel import World

__all__ = ["MODEL", "Finished", "train"]

MODEL = "model"  # folder of the trained model within a run's folder

Observer = Callable[[Mapping[str, Any]], None]


class Finished(NamedTuple):
    """How a run ended.

    Fields:
        step: steps done.
        interrupted: the signal that stopped it, or None at the end of the steps.
        model: folder of the trained model, or the last checkpoint of an interrupted run.
        bits_per_byte: of the last evaluation; NaN if there was none.
    """

    step: int
    interrupted: int | None
    model: Path
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
        observe: called with every line of metrics.

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
    if not resume and ((run / METRICS).exists() or (run / CHECKPOINTS).exists()):
        raise ConfigError(f"{str(run)!r} already holds a run: resume it, or choose another folder")
    run.mkdir(parents=True, exist_ok=True)
    return _Run(model, training, validation, config, run, device, world, observe).go(resume)


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
    ) -> None:
        self.config, self.run, self.device, self.world, self.observe = config, run, device, world, observe
        self.model = model.to(device, getattr(torch, config.dtype)).train()
        self.model.checkpointing = config.checkpointing
        self.validation = validation
        self.tokenizer = training.tokenizer
        batches = StreamBatches if config.carry_state else PackedBatches
        self.batches = batches(
            training,
            config.context,
            config.batch_size,
            config.seed,
            rank=world.rank,
            world_size=world.size,
        )
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
        self.bits_per_byte = math.nan

    def go(self, resume: bool) -> Finished:
        """All steps, from the last checkpoint if there is one to resume."""
        done = 0
        checkpoint = latest_checkpoint(self.run) if resume else None
        if checkpoint is not None:
            done, self.state = load_checkpoint(
                checkpoint, model=self.model, optimizer=self.optimizer, record=self.record
            )
            self.last_saved = checkpoint
        self.metrics = Metrics(self.run, done, writes=self.world.leads)
        self.world.wait()
        with interruptible() as asked:
            if done:
                self.evaluate_if_due(done)
            for step in range(done, self.config.steps):
                self.emit(self.step(step))
                done = step + 1
                if self.world.any(asked.signal is not None, self.device):
                    self.save(done)
                    assert self.last_saved is not None
                    return Finished(done, asked.signal, self.last_saved, self.bits_per_byte)
                self.evaluate_if_due(done)
                if done == self.config.steps or (self.config.save_every and done % self.config.save_every == 0):
                    self.save(done)
        folder = self.run / MODEL
        if self.world.leads:
            with atomic_folder(folder) as temporary:
                self.model.write(temporary)
                self.tokenizer.save(temporary)
        self.world.wait()
        return Finished(done, None, folder, self.bits_per_byte)

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
                # Data parallelism averages gradients over the processes; the loss is a sum over all of them.
                (loss * (self.world.size / weight)).backward()
            total = total + loss.detach()
        total = self.world.sum(total) / weight
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        values = torch.stack([total.double().cpu(), norm.double().cpu()]).tolist()
        if not all(map(math.isfinite, values)):
            self.refuse(step, rate, values, micro, before)
        self.optimizer.step()
        self.state = after.detach() if config.carry_state else None
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

    def evaluate_if_due(self, done: int) -> None:
        """Evaluate on the validation part, if this step is one of those and it was not done before."""
        every = self.config.evaluate_every
        due = done == self.config.steps or (every and done % every == 0)
        if not due or done in self.metrics.evaluated:
            return
        begin = time.perf_counter()
        if self.world.leads:
            self.model.eval()
            scores = score(
                self.model,
                self.validation,
                context=self.config.context,
                max_tokens=self.config.evaluate_tokens,
                batch_size=self.config.batch_size,
            )
            self.model.train()
            self.bits_per_byte = scores.bits_per_byte
        self.emit(
            {
                "step": done,
                "validation_bits_per_byte": self.bits_per_byte,
                "seconds": time.perf_counter() - begin,
            }
        )
        self.world.wait()

    def emit(self, line: Mapping[str, Any]) -> None:
        """Write a line of metrics and show it."""
        self.metrics.write(line)
        if self.world.leads:
            self.observe(line)

    def save(self, done: int) -> None:
        """Write a checkpoint, which every process then knows."""
        folder = self.run / CHECKPOINTS / f"step-{done:08d}"
        if self.world.leads:
            save_checkpoint(
                self.run,
                step=done,
                model=self.model,
                tokenizer=self.tokenizer,
                optimizer=self.optimizer,
                state=self.state,
                record=self.record,
            )
        self.last_saved = folder
        self.world.wait()
