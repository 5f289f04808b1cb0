"""How one token reaches another through a layer, told from how the layer's state grows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ..mixers import Mixer
from ..ops.tree import leaves

__all__ = ["Reach", "reach"]

#: no context is longer: a state that still grows here grows for ever
ENDLESS = 1 << 40


class Reach(NamedTuple):
    """How a layer's tokens reach one another.

    Fields:
        why: one line.
        path: number of tokens -> the longest path between two of them: layers, or transitions of the state; None
            where there is none.
        full: the context from which on the state has its final size; None if it has none.
        generates: a state goes from one token to the next.
    """

    why: str
    path: Callable[[int], int | None]
    full: int | None
    generates: bool


def reach(mixer: Mixer) -> Reach:
    """Tell it of a mixer on the meta device (see Vaswani et al. 2017, table 1, for the terms)."""
    state = mixer.init_state(1)
    if state is None:
        return Reach("every token sees every other, all pairs at once", lambda tokens: 1, None, False)
    full = _full(mixer)
    if full is None:
        return Reach("every token sees all before it, all pairs at once", lambda tokens: 1, None, True)
    if full:
        why = f"a layer sees back {full:,} tokens; what is further off comes through more layers"
        return Reach(why, lambda tokens: -(-(tokens - 1) // full), full, True)
    if any(leaf.numel() for leaf in leaves(state) if leaf.is_floating_point() or leaf.is_complex()):
        why = "each token in between acts on the state; chunks make the steps fewer, not the path"
        return Reach(why, lambda tokens: tokens - 1, 0, True)
    return Reach("every token sees itself alone", lambda tokens: None, 0, True)


def _full(mixer: Mixer) -> int | None:
    last = mixer.state_bytes(ENDLESS)
    if mixer.state_bytes(2 * ENDLESS) > last:
        return None
    low, high = -1, ENDLESS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if mixer.state_bytes(middle) == last else (middle, high)
    return high
