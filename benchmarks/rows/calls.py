"""What one call costs apart from its arithmetic: a step of one token with a state of a few numbers."""

from __future__ import annotations

from functools import partial

import torch

from lavagna import native
from lavagna.ops import OPS
from lavagna.ops.spec import load_spec

from ..measure import Microseconds, Side
from ..row import Row, at_most

CALLS = 100
TINY = {"B": 1, "T": 1, "H": 1, "HV": 1, "K": 8, "V": 8, "D": 8, "N": 4, "G": 1, "W": 4}


def step(op: str) -> Side:
    """Calls of the public operator on one token, from a state to a state; the time counts one of them."""
    spec = load_spec(op)
    case = next((case for case in spec.bench if case.sizes["T"] == 1), spec.bench[0])
    case = case._replace(sizes={letter: TINY[letter] for letter in case.sizes})
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode():
        inputs = spec.make(case, generator, torch.float32)
        tensors = {name: tensor for name, tensor in inputs.tensors.items() if tensor is not None}
        state = spec.function(**tensors, **inputs.options, return_state=True).state

    def run() -> None:
        with torch.inference_mode():
            for _ in range(CALLS):
                spec.function(**tensors, **inputs.options, state=state, return_state=True)

    return Side(run, CALLS)


ROWS = tuple(
    Row(
        f"call-{op.replace('_', '-')}",
        f"one call of {op}, T 1, a tiny state, validation included, inference mode",
        "–",
        at_most(12, "µs"),
        Microseconds(partial(step, op)),
    )
    for op in OPS
    if op in native.KERNELS
)
