"""Data parallelism as ``torchrun`` sets it up: this process's place among the others, and sums over all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["World", "join_world"]


class World(NamedTuple):
    """This process among those that train together.

    Fields:
        rank: 0 to size − 1; rank 0 writes files and shows progress.
        size: number of processes.
        local_rank: place on this machine, which chooses the GPU.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a tensor over all processes."""
        if self.size > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process."""
        return flag if self.size == 1 else bool(self.sum(torch.tensor(float(flag), device=device)) > 0)

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, by rank, in the process that leads; an empty list in the others."""
        if self.size == 1:
            return [value]
        values = [None] * self.size if self.leads else None
        dist.gather_object(value, values)
        return values or []

    def wait(self) -> None:
        """Wait until all processes are here."""
        if self.size > 1:
            dist.barrier()


@contextmanager
def join_world(device: torch.device) -> Iterator[World]:
    """Join the processes that ``torchrun`` started, if it started this one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield World()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), size, int(os.environ.get("LOCAL_RANK", "0")))
    finally:
        dist.destroy_process_group()
