"""Parameters that no gradient reaches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .decoder import WIDTH, Decoder
from .twin import Twin


class UnusedProjection(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)


class DetachedBias(Decoder):
    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(WIDTH))

    def positions(self, real: Tensor, cache: tuple[Tensor, ...] | None) -> Tensor:
        return super().positions(real, cache) + self.offset.detach()


TWINS = (
    Twin(UnusedProjection, "untrained"),
    Twin(DetachedBias, "untrained"),
)
