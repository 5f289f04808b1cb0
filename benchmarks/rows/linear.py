"""Gated linear attention, with one decay a head (Mamba-2) and with one a key channel (GLA)."""

from __future__ import annotations

from ..measure import Crossover, Make, Ratio
from ..peers import MAMBA2_CHUNKS, SDPA
from ..row import Row, at_least, at_most, shown
from ..workloads import PORTABLE, Workload, bfloat16_products, forward, forward_backward

MAMBA2 = Workload("gated_linear", "mamba2-peers", {"B": 1, "T": 1024, "H": 1, "HV": 64, "K": 128, "V": 64})
GLA = Workload("gated_linear", "gla-340m", {"B": 1, "T": 2048, "H": 4, "HV": 4, "K": 128, "V": 256})
LONG = MAMBA2.resized(T=8192, H=8, HV=8, K=64, V=64)
MAMBA2_SHAPE = "64 heads, P 64, N 128, T 1024"
GLA_SHAPE = "4 heads, K 128, V 256, T 2048"
OPTION = "1 thread, products in bfloat16 (an option)"
LONG_SHAPE = "scalar decay, 8 heads of 64, T 8192"


def ours(T: int) -> Make:
    return forward_backward(LONG.resized(T=T))


def attention(T: int) -> Make:
    return forward_backward(LONG.resized(T=T), SDPA)


ROWS = (
    Row(
        "mamba2-transformers",
        f"Mamba-2 forward, {MAMBA2_SHAPE}, 1 thread",
        "transformers, chunks",
        at_least(10),
        Ratio(forward(MAMBA2), forward(MAMBA2, MAMBA2_CHUNKS)),
    ),
    Row(
        "mamba2-backward-transformers",
        f"Mamba-2 forward + backward, {MAMBA2_SHAPE}, 1 thread",
        "transformers, chunks",
        at_least(8),
        Ratio(forward_backward(MAMBA2), forward_backward(MAMBA2, MAMBA2_CHUNKS)),
    ),
    Row(
        "gla-portable",
        f"GLA forward, {GLA_SHAPE}, 1 thread",
        "our torch path",
        at_least(5),
        Ratio(forward(GLA), forward(GLA, PORTABLE)),
    ),
    Row(
        "gla-bfloat16-portable",
        f"GLA forward, {GLA_SHAPE}, {OPTION}",
        "our torch path, float32",
        shown("×"),
        Ratio(bfloat16_products(forward(GLA)), forward(GLA, PORTABLE)),
    ),
    Row(
        "gla-bfloat16",
        f"GLA forward, {GLA_SHAPE}, {OPTION}",
        "the same kernel, float32",
        shown("×"),
        Ratio(bfloat16_products(forward(GLA)), forward(GLA)),
    ),
    Row(
        "mamba2-bfloat16",
        f"Mamba-2 forward, {MAMBA2_SHAPE}, {OPTION}",
        "the same kernel, float32",
        shown("×"),
        Ratio(bfloat16_products(forward(MAMBA2)), forward(MAMBA2)),
    ),
    Row(
        "mamba2-bfloat16-backward",
        f"Mamba-2 forward + backward, {MAMBA2_SHAPE}, {OPTION}",
        "the same kernel, float32",
        shown("×"),
        Ratio(bfloat16_products(forward_backward(MAMBA2)), forward_backward(MAMBA2)),
    ),
    Row(
        "mamba2-threads",
        f"Mamba-2 forward, {MAMBA2_SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward(MAMBA2), forward(MAMBA2), threads=(2, 1)),
    ),
    Row(
        "mamba2-backward-threads",
        f"Mamba-2 forward + backward, {MAMBA2_SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward_backward(MAMBA2), forward_backward(MAMBA2), threads=(2, 1)),
    ),
    Row(
        "gla-threads",
        f"GLA forward, {GLA_SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward(GLA), forward(GLA), threads=(2, 1)),
    ),
    Row(
        "linear-attention",
        f"gated_linear forward, {LONG_SHAPE}, 2 threads",
        "causal attention of torch",
        at_least(25),
        Ratio(forward(LONG), forward(LONG, SDPA), threads=(2, 2)),
    ),
    Row(
        "linear-backward-attention",
        f"gated_linear forward + backward, {LONG_SHAPE}, 2 threads",
        "causal attention of torch",
        at_least(25),
        Ratio(forward_backward(LONG), forward_backward(LONG, SDPA), threads=(2, 2)),
    ),
    Row(
        "linear-crossover",
        "gated_linear forward + backward, 8 heads of 64, 2 threads: faster from T on",
        "causal attention of torch",
        at_most(128, "tokens"),
        Crossover(ours, attention, (32, 64, 128, 256, 512, 1024), 2),
    ),
)
