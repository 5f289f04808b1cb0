"""The short convolution of the channels."""

from __future__ import annotations

from ..measure import Ratio
from ..row import Row, shown
from ..workloads import PORTABLE, Workload, forward, forward_backward

CONV = Workload("short_conv", "mamba-130m", {"B": 1, "T": 1024, "D": 1536})
SHAPE = "D 1536, W 4, SiLU, T 1024"

ROWS = (
    Row(
        "conv-portable",
        f"short_conv forward, {SHAPE}, 1 thread",
        "our torch path",
        shown("×"),
        Ratio(forward(CONV), forward(CONV, PORTABLE)),
    ),
    Row(
        "conv-backward-portable",
        f"short_conv forward + backward, {SHAPE}, 1 thread",
        "our torch path",
        shown("×"),
        Ratio(forward_backward(CONV), forward_backward(CONV, PORTABLE)),
    ),
)
