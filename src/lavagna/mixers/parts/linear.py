"""The linear layer of every mixer, MLP and head."""

from __future__ import annotations

from torch import Tensor, nn

from ...ops.skinny_linear import linear

__all__ = ["Linear"]


class Linear(nn.Linear):
    """torch's Linear; a few tokens whose gradient is not recorded, a step of generation, run on the native kernel."""

    def forward(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(x, self.weight, self.bias)
