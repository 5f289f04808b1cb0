"""Curves of a run for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .checkpoint import latest_checkpoint

__all__ = ["CURVES", "tensorboard"]

CURVES = "tensorboard"


@contextmanager
def tensorboard(run: Path, wanted: bool | None = None) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """Write each line of metrics that the function given gets into ``tensorboard`` in the run's folder.

    Args:
        run: the run's folder.
        wanted: None writes where TensorBoard is installed, False never.

    Raises:
        ConfigError: wanted, and not installed.
    """
    installed = find_spec("tensorboard") is not None
    if wanted and not installed:
        raise ConfigError("--tensorboard needs the package tensorboard: pip install 'lavagna[tensorboard]'")
    if wanted is False or not installed:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    last = latest_checkpoint(run)
    # A resumed run repeats the steps after its checkpoint: their old points are to be hidden.
    purge = None if last is None else int(last.name.removeprefix("step-")) + 1
    writer = SummaryWriter(str(run / CURVES), purge_step=purge)

    def write(line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if name != "step":
                writer.add_scalar(name, value, line["step"])

    try:
        yield write
    finally:
        writer.close()
