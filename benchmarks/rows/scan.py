"""Mamba's selective scan (S6)."""

from __future__ import annotations

from ..limits import multiply_add
from ..measure import Ratio
from ..peers import MAMBA_SCAN, MAMBAPY_SCAN
from ..row import Row, at_least
from ..workloads import Workload, forward, forward_backward, state_updates

S6 = Workload("selective_scan", "peers", {"B": 1, "T": 1024, "D": 1024, "N": 16})
SHAPE = "D 1024, N 16, T 1024"

#: the least that 16 updates of a state take on the unit that multiplies and adds 16 pairs of numbers a cycle: 9 cycles
FLOOR = 9 * 2.0 * state_updates(S6)

ROWS = (
    Row(
        "scan-transformers",
        f"S6 forward, {SHAPE}, 1 thread",
        "transformers",
        at_least(60),
        Ratio(forward(S6), forward(S6, MAMBA_SCAN)),
    ),
    Row(
        "scan-mambapy",
        f"S6 forward, {SHAPE}, 1 thread",
        "mambapy",
        at_least(50),
        Ratio(forward(S6), forward(S6, MAMBAPY_SCAN)),
    ),
    Row(
        "scan-floor",
        f"S6 forward, {SHAPE}, 1 thread",
        "its floor: 9 multiply-add cycles for 16 updates",
        at_least(0.70, "%"),
        Ratio(forward(S6, work=FLOOR), multiply_add),
    ),
    Row(
        "scan-backward-mambapy",
        f"S6 forward + backward, {SHAPE}, 1 thread",
        "mambapy",
        at_least(50),
        Ratio(forward_backward(S6), forward_backward(S6, MAMBAPY_SCAN)),
    ),
    Row(
        "scan-threads",
        f"S6 forward, {SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward(S6), forward(S6), threads=(2, 1)),
    ),
    Row(
        "scan-backward-threads",
        f"S6 forward + backward, {SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward_backward(S6), forward_backward(S6), threads=(2, 1)),
    ),
)
