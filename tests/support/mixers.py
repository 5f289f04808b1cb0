"""Mixers for tests: with every parameter at a value of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lavagna.mixers import Mixer, build

from .variants import WIDTH

__all__ = ["mixer", "randomised"]


def randomised(module: nn.Module) -> nn.Module:
    """Every parameter drawn anew, so that none is at a value that hides it (norms of ones, biases of zero)."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("A_log"):
                parameter.uniform_(0, 1)
            elif parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
            else:
                parameter.normal_()
    return module.eval()


def mixer(name: str, **options: Any) -> Mixer:
    """A mixer of WIDTH channels in float64, every parameter drawn anew."""
    return randomised(build(name, WIDTH, options).double())
