"""Tasks whose right answers are known: what a model has to do to be believed."""

from __future__ import annotations

from .symbols import Accuracy, Task, accuracy, batch, held_out

__all__ = ["Accuracy", "Task", "accuracy", "batch", "held_out"]
