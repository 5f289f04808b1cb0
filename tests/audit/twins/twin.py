"""What a twin is."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import nn


class Twin(NamedTuple):
    """A broken model and the trap that it fell into."""

    make: Callable[[], nn.Module]
    trap: str

    @property
    def name(self) -> str:
        return self.make.__name__
