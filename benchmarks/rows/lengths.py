"""Time against the length of a sequence: twice as long, twice the time.

Each length gets as many sequences as make 128 k tokens. The same memory is then read and written at each of them, so
that caches, fresh pages and what a call costs by itself do not pass for an exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ..measure import Make, Slope
from ..row import Row, between
from ..workloads import Workload, forward, forward_backward

TOKENS = 1 << 17
LENGTHS = (TOKENS >> 6, TOKENS >> 4, TOKENS >> 2, TOKENS)  # 2 k to 128 k
HEAD = {"H": 1, "HV": 1, "K": 64, "V": 64}

WORKLOADS = {
    "scan": Workload("selective_scan", "peers", {"D": 64, "N": 16}),
    "linear": Workload("gated_linear", "mamba2-peers", HEAD),
    "gla": Workload("gated_linear", "gla-340m", HEAD),
    "delta": Workload("gated_delta", "gated-deltanet", HEAD),
    "kda": Workload("gated_delta", "kda", HEAD),
    "conv": Workload("short_conv", "mamba-130m", {"D": 64}),
}

DIRECTIONS: dict[str, tuple[str, Callable[..., Make]]] = {
    "forward": ("forward", forward),
    "backward": ("forward + backward", forward_backward),
}


def at_length(workload: Workload, side: Callable[..., Make], T: int) -> Make:
    """Work in sequences."""
    return side(workload.resized(T=T, B=TOKENS // T), work=TOKENS / T)


ROWS = tuple(
    Row(
        f"slope-{name}-{direction}",
        f"{workload.op} ({name}) {words}, time of a sequence of T tokens, 2 k to 128 k, 1 thread",
        "exponent of T",
        between(0.97, 1.03),
        Slope(partial(at_length, workload, side), LENGTHS),
    )
    for name, workload in WORKLOADS.items()
    for direction, (words, side) in DIRECTIONS.items()
)
