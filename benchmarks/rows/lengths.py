"""Time against the number of tokens: twice as many tokens, twice the time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..measure import Make, Slope
from ..row import Row, between
from ..workloads import Workload, forward, forward_backward

#: 2 k to 128 k; on one head of 64, or as many channels, so that the longest fits into memory with its gradients
LENGTHS = (2_000, 8_000, 32_000, 128_000)
HEAD = {"B": 1, "H": 1, "HV": 1, "K": 64, "V": 64}

WORKLOADS = {
    "scan": Workload("selective_scan", "peers", {"B": 1, "D": 64, "N": 16}),
    "linear": Workload("gated_linear", "mamba2-peers", HEAD),
    "gla": Workload("gated_linear", "gla-340m", HEAD),
    "delta": Workload("gated_delta", "gated-deltanet", HEAD),
    "kda": Workload("gated_delta", "kda", HEAD),
    "conv": Workload("short_conv", "mamba-130m", {"B": 1, "D": 64}),
}

DIRECTIONS: dict[str, tuple[str, Callable[[Workload], Make]]] = {
    "forward": ("forward", forward),
    "backward": ("forward + backward", forward_backward),
}


def at_length(workload: Workload, side: Callable[[Workload], Make], T: int) -> Make:
    return side(workload.resized(T=T))


ROWS = tuple(
    Row(
        f"slope-{name}-{direction}",
        f"time of {workload.op} ({workload.case}) {words}, T from 2 k to 128 k, 1 thread",
        "exponent of T",
        between(0.97, 1.03),
        Slope(partial(at_length, workload, side), LENGTHS),
    )
    for name, workload in WORKLOADS.items()
    for direction, (words, side) in DIRECTIONS.items()
)
