"""Training: settings, the loop, checkpoints, data parallelism."""

from __future__ import annotations

from .config import TrainingConfig
from .curves import tensorboard
from .data import DataConfig, make_tokenizer, open_corpus
from .loop import Finished, check_free, make_batches, train
from .metrics import read_metrics
from .optimizer import learning_rate, make_optimizer, parameter_groups
from .parallel import World, join_world
from .run import DATA, MODEL, SETTINGS, find_model, find_run, trained_on, trained_with
from .settings import Settings, merge, read_tables, set_value

__all__ = [
    "DATA",
    "MODEL",
    "SETTINGS",
    "DataConfig",
    "Finished",
    "Settings",
    "TrainingConfig",
    "World",
    "check_free",
    "find_model",
    "find_run",
    "join_world",
    "learning_rate",
    "make_batches",
    "make_optimizer",
    "make_tokenizer",
    "merge",
    "open_corpus",
    "parameter_groups",
    "read_metrics",
    "read_tables",
    "set_value",
    "tensorboard",
    "train",
    "trained_on",
    "trained_with",
]
