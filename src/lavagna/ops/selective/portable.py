"""What stands around the scan in torch: Δ before it, the skip and the gate behind it.

Packed sequences are padded only between the two, where a token of Δ = 0 changes no state; before, no value of
dt would do: a bias, softplus or a lower limit makes Δ positive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from ..packing import run_packed
from . import chunk as chunk_form
from . import recurrent as recurrent_form

__all__ = ["chunk", "recurrent"]

#: Where softplus(x) becomes x; torch's own 20 is wrong by 2e-9 in float64.
SOFTPLUS_IS_LINEAR = 40.0


def _complete(scan: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        x: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        dt_bias: Tensor | None,
        *,
        dt_softplus: bool,
        dt_limit: tuple[float, float] | None,
        chunk_size: int | None,
        state: Tensor,
        bounds: list[int] | None,
    ) -> tuple[Tensor, Tensor]:
        delta = dt if dt_bias is None else dt + dt_bias
        if dt_softplus:
            delta = F.softplus(delta, threshold=SOFTPLUS_IS_LINEAR)
        if dt_limit is not None:
            delta = delta.clamp(*dt_limit)
        if bounds is None:
            y, state = scan(x, delta, A, B, C, state=state, chunk_size=chunk_size)
        else:
            timed = {"x": x, "delta": delta}
            timed |= {name: c for name, c in (("B", B), ("C", C)) if c.ndim > 2}
            constant = {name: c for name, c in (("B", B), ("C", C)) if c.ndim == 2}
            y, state = run_packed(
                lambda group, rows: scan(A=A, **group, **constant, state=rows, chunk_size=chunk_size),
                timed,
                {},
                state,
                bounds,
            )
        if D is not None:
            y = y + D * x
        if z is not None:
            y = y * F.silu(z)
        return y, state

    return run


recurrent = _complete(recurrent_form.scan)
chunk = _complete(chunk_form.scan)
