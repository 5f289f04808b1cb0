"""Sound models as people write them, and broken twins of them: each has one planted bug.

The sound ones are plain torch, without anything of this package. A broken one overrides what is wrong with it, and
stands in the file named after the check (lavagna.audit.checks) that finds it.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from . import (
    attention,
    batch,
    causality,
    gradients,
    heads,
    memory,
    packing,
    padding,
    parameters,
    precision,
    purity,
    running,
    states,
)
from .decoder import Decoder, FusedDecoder, GroupedDecoder
from .recurrence import Recurrence
from .twin import Twin

__all__ = ["LONG", "SOUND", "TWINS", "Twin"]

#: sound models, none of which may fail
SOUND: tuple[Callable[[], nn.Module], ...] = (Decoder, GroupedDecoder, FusedDecoder, Recurrence)

TWINS: tuple[Twin, ...] = (
    *running.TWINS,
    *purity.TWINS,
    *batch.TWINS,
    *attention.TWINS,
    *heads.TWINS,
    *causality.TWINS,
    *padding.TWINS,
    *states.TWINS,
    *packing.TWINS,
    *parameters.TWINS,
    *gradients.TWINS,
    *precision.TWINS,
    *memory.TWINS,
)

#: what shows behind a chunk of 256 alone
LONG: tuple[Twin, ...] = (*causality.LONG, *states.LONG)
