"""Training: the loop, its configuration, checkpoints, data parallelism."""

from __future__ import annotations

from .config import TrainingConfig
from .loop import Finished, train
from .metrics import read_metrics
from .optimizer import learning_rate, make_optimizer, parameter_groups
from .parallel import World, join_world

__all__ = [
    "Finished",
    "TrainingConfig",
    "World",
    "join_world",
    "learning_rate",
    "make_optimizer",
    "parameter_groups",
    "read_metrics",
    "train",
]
