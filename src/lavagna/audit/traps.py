"""The table of traps: what can silently go wrong, how it is checked, what it drags along, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .checks import (
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
from .finding import Measurement
from .subject import Subject

__all__ = ["TRAPS", "Trap", "consequences_of"]


@dataclass(frozen=True)
class Trap:
    """One thing that can silently go wrong.

    Attributes:
        name: for allow-lists and files.
        title: in words.
        check: yields measurements, smallest inputs first.
        unit: of what is measured.
        consequences: names of traps that a model fallen into this one may fail as well.
        cause: the likely one.
        remedy: what to do.
    """

    name: str
    title: str
    check: Callable[[Subject], Iterator[Measurement]]
    unit: str
    consequences: tuple[str, ...]
    cause: str
    remedy: str


#: what is measured where two answers should be one
RELATIVE = "of the output"

#: the traps that compare a batch, or a sequence in parts, with the whole
TOGETHER = ("neighbours", "padding", "state-after-padding", "packed")
IN_PARTS = ("stepping", "continuing", "interleaving", "reordering", "reusing", "state-after-padding")

#: Roots first: a failure is reported before those that it may have caused.
TRAPS: tuple[Trap, ...] = (
    Trap(
        "crash",
        "the model raises",
        running.crashes,
        "failed calls",
        (),  # every other failure may be one: see consequences_of
        "a length or batch size that the code does not expect",
        "run the example by itself; if it is a limit of the model, tell it as max_tokens",
    ),
    Trap(
        "input-mutated",
        "inputs changed in place",
        purity.input_mutated,
        "largest change",
        ("earlier-calls", "memory-layout", "gradients", *TOGETHER, *IN_PARTS),
        "an in-place operator (add_, masked_fill_, copy into a cache) on something that the caller owns",
        "use the operator that returns a new tensor, or clone first",
    ),
    Trap(
        "earlier-calls",
        "earlier calls matter",
        purity.earlier_calls,
        RELATIVE,
        ("future-leak", "memory-layout", "gradients", "heads", "non-finite", "precision", *TOGETHER, *IN_PARTS),
        "something of an earlier call is kept on the module: a mask, a position, a state, a statistic",
        "keep nothing on the module in forward; what must be kept belongs into the state that is returned",
    ),
    Trap(
        "memory-layout",
        "memory layout matters",
        purity.memory_layout,
        RELATIVE,
        ("gradients", *TOGETHER, *IN_PARTS),
        "memory is read as if it were contiguous (data_ptr, as_strided, a kernel that ignores strides)",
        "call .contiguous() where strides are ignored, and use reshape in place of view",
    ),
    Trap(
        "neighbours",
        "batch neighbours matter",
        batch.neighbours,
        RELATIVE,
        ("padding", "state-after-padding", "packed", "interleaving", "reordering"),
        "something is summed or normalised over the batch, or batch and heads are mixed in a reshape",
        "let every reduction name its axis, and none of them the batch",
    ),
    Trap(
        "softmax-over-queries",
        "softmax over queries",
        attention.softmax_over_queries,
        "off one",
        ("mask-after-softmax", "future-leak", "padding", "state-after-padding", "packed", "stepping", "continuing"),
        "the softmax has the wrong axis: each key shares itself out among queries, later ones too",
        "softmax over the last axis of q kᵀ, the keys",
    ),
    Trap(
        "mask-after-softmax",
        "mask after the softmax",
        attention.mask_after_softmax,
        "weight lost",
        ("future-leak", "padding", "state-after-padding", "packed", "stepping", "continuing"),
        "weights are set to zero after the softmax, so that hidden keys still count in its denominator",
        "add −∞ to the logits of hidden keys before the softmax",
    ),
    Trap(
        "heads",
        "heads stitched wrongly",
        heads.heads_stitched,
        RELATIVE,
        ("future-leak", "neighbours", *TOGETHER, *IN_PARTS),
        "heads are split or joined by a reshape without its transpose, or grouped keys are repeated in another order "
        "than the queries have",
        "split as reshape(B, T, H, K).transpose(1, 2), join as transpose(1, 2).reshape(B, T, H*K), repeat grouped keys "
        "with repeat_interleave",
    ),
    Trap(
        "scale",
        "scale forgotten",
        attention.scale_forgotten,
        "deviation of logits",
        (),
        "logits are not divided by √K: the larger the heads, the more a row is one key alone, and its gradient zero",
        "multiply q kᵀ by K^-0.5",
    ),
    Trap(
        "no-position",
        "no position",
        attention.no_position,
        "(1: it knows no order)",
        (),
        "nothing tells attention where a token stands: positions were left out, or are not added",
        "rotary positions on queries and keys, or positions added to the embeddings",
    ),
    Trap(
        "future-leak",
        "future leaks into the past",
        causality.future_leak,
        RELATIVE,
        ("padding", "state-after-padding", "packed", "gradients", "stepping", "continuing"),
        "no causal mask, one that is off by one, a convolution padded on both sides, something normalised over time, "
        "or the sum of a chunk read before its end",
        "mask s > t before the softmax; pad convolutions by W − 1 on the left alone; read a chunk's state before it is "
        "updated",
    ),
    Trap(
        "padding",
        "padding attended",
        padding.padding_attended,
        RELATIVE,
        ("state-after-padding",),
        "the mask is ignored, or misses a path: keys, a convolution or its bias, a token shift, the positions",
        "hide padded keys, write nothing of padding into a state, zero it before and after a convolution, and count "
        "positions from the first real token",
    ),
    Trap(
        "state-after-padding",
        "state after padding wrong",
        padding.state_after_padding,
        RELATIVE,
        (),
        "the state is taken at the last place of the batch, not at each row's last real token",
        "let padding change no state: no decay, no write, no shift of a convolution's tail",
    ),
    Trap(
        "interleaving",
        "interleaved sequences disturbed",
        states.interleaving,
        RELATIVE,
        ("stepping", "continuing", "reordering", "reusing", "state-after-padding", "packed"),
        "part of the state is kept on the module in place of the state that is handed over",
        "put everything that a next token needs into the state, convolution tails and positions included",
    ),
    Trap(
        "stepping",
        "steps differ from one pass",
        states.stepping,
        RELATIVE,
        ("continuing", "reordering"),
        "the step computes something else: a convolution's tail, a position, a limit or a bias is missing from it, or "
        "the state is not what the prefill left",
        "let step and forward share their code, and test them against each other",
    ),
    Trap(
        "continuing",
        "continuation differs from one pass",
        states.continuing,
        RELATIVE,
        (),
        "a call with several tokens starts from an empty state, or without the convolution's tail or the right mask",
        "start the scan from the state that came in, whatever the number of tokens",
    ),
    Trap(
        "reordering",
        "forked or reordered state wrong",
        states.reordering,
        RELATIVE,
        (),
        "part of the state has no rows, or they are left where they were",
        "give every tensor of the state the batch as an axis, and reorder them all",
    ),
    Trap(
        "reusing",
        "state read twice differs",
        states.reusing,
        RELATIVE,
        (),
        "reading on changes the state that came in",
        "return a new state, or a copy of what is written in place",
    ),
    Trap(
        "packed",
        "packed differs from separate",
        packing.packed,
        RELATIVE,
        (),
        "something crosses a boundary: a mask, a state, a convolution, a token shift, a position",
        "reset all of them at each boundary",
    ),
    Trap(
        "untrained",
        "parameters unused or untrained",
        parameters.untrained,
        "parameters",
        ("gradients",),
        "a module is made and never called, or its result is thrown away",
        "remove it, or use it",
    ),
    Trap(
        "gradients",
        "gradients wrong",
        gradients.wrong_gradients,
        "of the derivative",
        (),
        "a backward pass written by hand, or a tensor that is detached on its way",
        "compare with torch.autograd.gradcheck in float64, operator by operator",
    ),
    Trap(
        "non-finite",
        "extreme inputs not finite",
        precision.not_finite,
        "bad numbers",
        ("precision",),
        "an exponential of a positive number, a division by or a root of zero, or 0 · ∞ in a backward pass",
        "subtract the maximum before exp, add epsilon inside roots, exponentiate differences that are never positive",
    ),
    Trap(
        "precision",
        "precision lost",
        precision.imprecise,
        RELATIVE,
        (),
        "a state or a sum is kept in half precision, or a decay is a difference of long cumulative sums",
        "keep states and sums in float32, and sum decays over the range itself",
    ),
    Trap(
        "state-grows",
        "state grows",
        memory.state_grows,
        "bytes per token",
        (),
        "something is appended at every call: tokens, masks, outputs, or views that keep what they were cut from",
        "keep what the next token needs and nothing else, and clone a view that outlives its tensor",
    ),
)


def consequences_of(trap: Trap) -> frozenset[str]:
    """Names of the traps that a model fallen into this one may fail as well."""
    if trap.name == "crash":
        return frozenset(other.name for other in TRAPS) - {"crash"}
    return frozenset(trap.consequences)
