"""What the folder of a run holds, and where in it the model is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .checkpoint import RECORD, latest_checkpoint
from .config import TrainingConfig

__all__ = ["DATA", "MODEL", "SETTINGS", "find_model", "find_run", "trained_on", "trained_with"]

SETTINGS = "run.json"  # everything that was asked of the run
DATA = "data"  # the corpus
MODEL = "model"  # the trained model


def find_model(path: str | os.PathLike[str]) -> Path:
    """The folder of a model, given by itself or by the run that made it.

    Args:
        path: a model's folder; or a run's, of which it is the trained model, or else the last checkpoint.

    Raises:
        ConfigError: there is no model.
    """
    folder = Path(path)
    for candidate in (folder, folder / MODEL, latest_checkpoint(folder)):
        if candidate is not None and (candidate / "model.safetensors").is_file():
            return candidate
    if not folder.exists():
        raise ConfigError(f"expected a model or a run, but {str(folder)!r} does not exist")
    raise ConfigError(
        f"expected a model or a run, but {str(folder)!r} holds neither model.safetensors, {MODEL}/ nor a checkpoint"
    )


def find_run(path: str | os.PathLike[str]) -> Path | None:
    """The run that `path` is, or whose trained model or checkpoint it is; else None."""
    folder = Path(path).absolute()
    for candidate in (folder, folder.parent, folder.parent.parent):
        if (candidate / SETTINGS).is_file():
            return candidate
    return None


def trained_with(folder: Path) -> TrainingConfig | None:
    """How the model of a folder was trained; None if it was not trained here.

    Raises:
        ConfigError: what is written there of it cannot be read.
    """
    record = _record(folder)
    prefix = "training."
    found = {k.removeprefix(prefix): v for k, v in record.items() if k.startswith(prefix)}
    return TrainingConfig.parse(found) if record else None


def trained_on(folder: Path) -> str | None:
    """Fingerprint of the corpus of which the model of a folder was trained on a part; None as above."""
    return _record(folder).get("data")


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8"))["record"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"expected how the model was trained in {str(path)!r}, got something else ({error})"
        ) from None
