"""The gated delta rule, with one decay a head (Gated DeltaNet) and with one a key channel (KDA)."""

from __future__ import annotations

from ..limits import product
from ..measure import Crossover, Make, Ratio
from ..peers import KIMI_CHUNKS, QWEN3_NEXT_CHUNKS, SDPA
from ..row import Row, at_least, at_most, shown
from ..workloads import Workload, bfloat16_products, forward, forward_backward, state_updates

GATED = Workload("gated_delta", "gated-deltanet", {"B": 1, "T": 1024, "H": 4, "HV": 4, "K": 128, "V": 128})
KDA = Workload("gated_delta", "kda", {"B": 1, "T": 1024, "H": 8, "HV": 8, "K": 128, "V": 128})
LONG = GATED.resized(T=8192, H=8, HV=8, K=64, V=64)
SHAPE = "4 heads of 128×128, T 1024"
KDA_SHAPE = "8 heads of 128×128, T 1024"
LONG_SHAPE = "8 heads of 64, T 8192"
OPTION = "1 thread, products in bfloat16 (an option)"

#: Sᵀk, the update and Sᵀq, two FLOPs each
LEAST = 6.0 * state_updates(GATED)


def ours(T: int) -> Make:
    return forward_backward(LONG.resized(T=T))


def attention(T: int) -> Make:
    return forward_backward(LONG.resized(T=T), SDPA)


ROWS = (
    Row(
        "delta-transformers",
        f"gated delta forward, {SHAPE}, 1 thread",
        "transformers, chunks",
        at_least(6),
        Ratio(forward(GATED), forward(GATED, QWEN3_NEXT_CHUNKS)),
    ),
    Row(
        "delta-product",
        f"gated delta forward, {SHAPE}, 1 thread, 6·K·V FLOPs a token and head",
        "torch product 1024³",
        at_least(0.50, "%"),
        Ratio(forward(GATED, work=LEAST), product()),
    ),
    Row(
        "delta-backward-transformers",
        f"gated delta forward + backward, {SHAPE}, 1 thread",
        "transformers, chunks",
        at_least(4.5),
        Ratio(forward_backward(GATED), forward_backward(GATED, QWEN3_NEXT_CHUNKS)),
    ),
    Row(
        "delta-bfloat16-peer",
        f"gated delta forward, {SHAPE}, {OPTION}",
        "transformers, chunks, float32",
        at_least(6),
        Ratio(bfloat16_products(forward(GATED)), forward(GATED, QWEN3_NEXT_CHUNKS)),
    ),
    Row(
        "delta-bfloat16-backward-peer",
        f"gated delta forward + backward, {SHAPE}, {OPTION}",
        "transformers, chunks, float32",
        at_least(4.5),
        Ratio(bfloat16_products(forward_backward(GATED)), forward_backward(GATED, QWEN3_NEXT_CHUNKS)),
    ),
    Row(
        "delta-bfloat16",
        f"gated delta forward, {SHAPE}, {OPTION}",
        "the same kernel, float32",
        shown("×"),
        Ratio(bfloat16_products(forward(GATED)), forward(GATED)),
    ),
    Row(
        "delta-bfloat16-backward",
        f"gated delta forward + backward, {SHAPE}, {OPTION}",
        "the same kernel, float32",
        shown("×"),
        Ratio(bfloat16_products(forward_backward(GATED)), forward_backward(GATED)),
    ),
    Row(
        "kda-transformers",
        f"KDA forward, {KDA_SHAPE}, 1 thread",
        "transformers, chunks",
        at_least(40),
        Ratio(forward(KDA), forward(KDA, KIMI_CHUNKS)),
    ),
    Row(
        "delta-threads",
        f"gated delta forward, {SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward(GATED), forward(GATED), threads=(2, 1)),
    ),
    Row(
        "delta-backward-threads",
        f"gated delta forward + backward, {SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward_backward(GATED), forward_backward(GATED), threads=(2, 1)),
    ),
    Row(
        "kda-threads",
        f"KDA forward, {KDA_SHAPE}, 2 threads",
        "1 thread",
        at_least(1.8),
        Ratio(forward(KDA), forward(KDA), threads=(2, 1)),
    ),
    Row(
        "delta-attention",
        f"gated delta forward, {LONG_SHAPE}, 2 threads",
        "causal attention of torch",
        at_least(18),
        Ratio(forward(LONG), forward(LONG, SDPA), threads=(2, 2)),
    ),
    Row(
        "delta-backward-attention",
        f"gated delta forward + backward, {LONG_SHAPE}, 2 threads",
        "causal attention of torch",
        at_least(18),
        Ratio(forward_backward(LONG), forward_backward(LONG, SDPA), threads=(2, 2)),
    ),
    Row(
        "delta-crossover",
        "gated delta forward + backward, 8 heads of 64, 2 threads: faster from T on",
        "causal attention of torch",
        at_most(256, "tokens"),
        Crossover(ours, attention, (32, 64, 128, 256, 512, 1024), 2),
    ),
)
