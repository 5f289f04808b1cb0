"""One token from a state that changes in place: the state is read once and written once, and nothing else counts."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from itertools import cycle

import torch
from torch import Tensor

from lavagna.ops import OPS

from ..limits import MB, huge, update
from ..measure import Make, Ratio, Side
from ..row import Row, at_least

HEADS, K, V = 32, 128, 128
STATE = 4 * HEADS * K * V
COLD = 100 * MB  # states that are cycled through, so that none is in a cache


def arguments(op: str) -> tuple[Tensor | bool | float | None, ...]:
    """What the step takes behind its state."""
    q, k, v = (torch.nn.functional.normalize(torch.randn(1, 1, HEADS, size), dim=-1) for size in (K, K, V))
    log_decay = -torch.rand(1, 1, HEADS)
    if op == "gated_delta":
        return q, k, v, torch.rand(1, 1, HEADS), log_decay, False, 1.0
    return None, q, k, v, log_decay, None, 1.0


def step(op: str, total: int) -> Side:
    """The operator that changes its state, on the next one of states of so many bytes in all."""
    operator = import_module(f"{OPS[op]}.cpu").step_
    states = cycle(huge(total // STATE, 1, HEADS, K, V).unbind())
    given = arguments(op)

    def run() -> None:
        with torch.inference_mode():
            operator(next(states), *given)

    return Side(run, 2.0 * STATE)


def limit(total: int) -> Make:
    return update(STATE, total, huge)


ROWS = tuple(
    Row(
        f"step-{name}-{heat}",
        f"{op}, one token in place, state of 32 × 128×128, {words}, 1 thread",
        "reading and writing the same memory",
        at_least(0.80, "%"),
        Ratio(partial(step, op, total), limit(total)),
    )
    for name, op in (("delta", "gated_delta"), ("linear", "gated_linear"))
    for heat, words, total in (("warm", "warm", STATE), ("cold", "cold (100 MB of states in turn)", COLD))
)
