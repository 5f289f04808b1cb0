"""Memories of fixed size: sums, gates, the delta rule, state-space models.

Read in this order: `zoo` (every memory, one token at a time), `chunked_delta` (the delta rule in chunks, derived),
`backward` (gradients by hand); `features` has what is done to keys and queries before.
"""

from __future__ import annotations

from .backward import delta_backward, gate_backward, sum_backward
from .chunked_delta import delta_chunked, delta_recurrent, wy
from .features import dpfp, elu1, l2_normalised, sum_normalised
from .zoo import MEMORIES, decays_of_retnet, run

__all__ = [
    "MEMORIES",
    "decays_of_retnet",
    "delta_backward",
    "delta_chunked",
    "delta_recurrent",
    "dpfp",
    "elu1",
    "gate_backward",
    "l2_normalised",
    "run",
    "sum_backward",
    "sum_normalised",
    "wy",
]
