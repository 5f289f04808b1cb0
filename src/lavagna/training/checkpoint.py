"""Checkpoints of a run: all that the next step depends on, in a folder that is whole or not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..data.tokenizer import Tokenizer
from ..errors import ConfigError
from ..files import atomic_folder
from ..models import LanguageModel, ModelState

__all__ = [
    "CHECKPOINTS",
    "RECORD",
    "Resumed",
    "checkpoint_folder",
    "latest_checkpoint",
    "load_checkpoint",
    "save_checkpoint",
    "write_record",
]

CHECKPOINTS = "checkpoints"
RECORD = "training.json"
KEPT = 2  # the last one, and the one before it should the last have saved what should not be gone on from


class Resumed(NamedTuple):
    """What a run goes on from: steps done, and the state carried between steps."""

    step: int
    state: ModelState | None


def checkpoint_folder(run: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps is kept."""
    return run / CHECKPOINTS / f"step-{step:08d}"


def save_checkpoint(
    run: Path,
    *,
    step: int,
    model: LanguageModel,
    tokenizer: Tokenizer,
    optimizer: torch.optim.Optimizer,
    states: Sequence[ModelState | None],
    record: Mapping[str, Any],
) -> Path:
    """Write ``checkpoints/step-N`` (a model folder and the optimiser beside it); older ones are removed.

    Args:
        run: folder of the run.
        step: steps done.
        model, tokenizer: written as a model folder, ready for use.
        optimizer: its moments.
        states: of each process, what it carries between steps, or None.
        record: what must be the same when the run goes on (see :func:`load_checkpoint`).
    """
    folder = checkpoint_folder(run, step)
    with atomic_folder(folder) as temporary:
        model.write(temporary)
        tokenizer.save(temporary)
        torch.save(optimizer.state_dict(), temporary / "optimizer.pt")
        for rank, state in enumerate(states):
            if state is not None:
                state.save(temporary / _state_file(rank), model)
        write_record(temporary, step, record)
    for old in sorted((run / CHECKPOINTS).glob("step-*"))[:-KEPT]:
        shutil.rmtree(old)
    return folder


def write_record(folder: Path, step: int, record: Mapping[str, Any]) -> None:
    """Write ``training.json`` beside a model: the steps it was trained for, and how."""
    text = json.dumps({"step": step, "record": dict(record)}, indent=2, sort_keys=True)
    (folder / RECORD).write_text(text + "\n")


def latest_checkpoint(run: Path) -> Path | None:
    """The checkpoint with the most steps, or None."""
    found = [folder for folder in (run / CHECKPOINTS).glob("step-*") if (folder / RECORD).is_file()]
    return max(found, default=None)


def load_checkpoint(
    folder: Path,
    *,
    model: LanguageModel,
    optimizer: torch.optim.Optimizer,
    record: Mapping[str, Any],
    rank: int = 0,
) -> Resumed:
    """Load a checkpoint into a model and an optimiser.

    Args:
        folder: from :func:`latest_checkpoint`.
        model, optimizer: what is loaded into.
        record: of this run, to be compared with the one that was saved.
        rank: of this process, whose carried state is wanted.

    Raises:
        ConfigError: the run was made with other settings or other data; the message names each that differs.
    """
    from safetensors.torch import load_model

    training = json.loads((folder / RECORD).read_text())
    before, now = training["record"], json.loads(json.dumps(dict(record)))
    differing = [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise ConfigError(f"cannot resume {str(folder)!r} with other settings: {'; '.join(differing)}")
    load_model(model, str(folder / "model.safetensors"))
    device = model.embedding.weight.device
    optimizer.load_state_dict(torch.load(folder / "optimizer.pt", map_location=device, weights_only=True))
    carried = folder / _state_file(rank)
    return Resumed(training["step"], ModelState.load(carried, model) if carried.is_file() else None)


def _state_file(rank: int) -> str:
    return f"state-{rank}.safetensors"
