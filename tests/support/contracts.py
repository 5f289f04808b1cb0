"""Mixers, MLPs and whole models as one kind of thing, and the answers by which their contracts are tested.

An answer is a mapping of names to tensors: output, final state, and the gradients of the two with respect to the
input, the initial state and every parameter. Contracts say which answers are equal.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lavagna.mixers import Mixer
from lavagna.models.backbone import Backbone
from lavagna.ops.dispatch import Result
from lavagna.ops.tree import concatenate, leaves, map_tensors, named_leaves, select

from .budget import error, size
from .operators import Answer, gradients

__all__ = [
    "LENGTHS",
    "ROWS",
    "Subject",
    "agree",
    "alone",
    "answer",
    "exact_alone",
    "exact_whole",
    "in_pieces",
    "inputs",
    "kept_bytes",
    "layouts",
    "padded",
    "random",
    "read_state",
    "values",
]

#: rows of the batches that are cut
ROWS = 2

#: tokens of the rows that are padded and packed: none, one, a few, more than a chunk
LENGTHS = (3, 0, 1, 67, 6)


class Subject(NamedTuple):
    """What is tested.

    Fields:
        name: for messages and identifiers.
        module: in float64, every parameter at a value of its own; tests share it and leave it as it is.
        width: D.
        excepted: the contracts that do not bind it.
    """

    name: str
    module: nn.Module
    width: int
    excepted: frozenset[str]

    def __call__(self, x: Tensor, state: Any = None, **arguments: Any) -> tuple[Tensor, Any]:
        """x [B, T, D] and a state -> the output and the next state."""
        return self.with_parameters({}, x, state, **arguments)

    def with_parameters(
        self, parameters: Mapping[str, Tensor], x: Tensor, state: Any = None, **arguments: Any
    ) -> tuple[Tensor, Any]:
        """The same with other values of some parameters."""
        call = partial(torch.func.functional_call, self.module, dict(parameters)) if parameters else _call(self.module)
        given = {"inputs_embeds" if isinstance(self.module, Backbone) else "x": x, "state": state, **arguments}
        output, state = call((), given)
        return output, state

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One token of each row, x [B, D], as one who generates text reads it."""
        if isinstance(self.module, Mixer):
            return self.module.step(x, state)
        output, state = self(x[:, None], state)
        return output[:, 0], state

    def state_bytes(self, context: int, rows: int = 1) -> int:
        """What the module says of its state's size."""
        if isinstance(self.module, Mixer):
            return self.module.state_bytes(context, rows, next(self.module.parameters()).dtype)
        assert isinstance(self.module, Backbone)
        return self.module.state_bytes(context, rows)

    def on(self, module: nn.Module) -> Subject:
        """The same questions to another module: a copy in another dtype."""
        return self._replace(module=module)


def _call(module: nn.Module) -> Callable[[tuple[()], dict[str, Any]], Any]:
    return lambda args, kwargs: module(*args, **kwargs)


# Inputs ----------------------------------------------------------------------------------------------------


def random(*shape: int, seed: str | int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, the same ones for the same shape and seed."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{shape} {seed}".encode()))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def read_state(subject: Subject, rows: int, tokens: int = 5) -> Any:
    """The state of rows that have read different numbers of tokens, the first one `tokens`, some nothing."""
    read = torch.tensor([max(tokens - 2 * (row % 3), 0) for row in range(rows)])
    mask = torch.arange(tokens) < read[:, None]
    dtype = next(subject.module.parameters()).dtype
    with torch.no_grad():
        _, state = subject(random(rows, tokens, subject.width, seed="before", dtype=dtype), token_mask=mask)
    return state


def inputs(subject: Subject, rows: int, tokens: int, states: int) -> tuple[Tensor, Any]:
    """x [rows, tokens, D] and a state of `states` rows, leaves that ask for gradients."""

    def leaf(tensor: Tensor) -> Tensor:
        fresh = tensor.detach().clone()
        return fresh.requires_grad_(fresh.is_floating_point() or fresh.is_complex())

    return leaf(random(rows, tokens, subject.width)), map_tensors(leaf, read_state(subject, states))


# Answers ---------------------------------------------------------------------------------------------------


def values(output: Tensor, state: Any) -> Answer:
    """Output and state by name."""
    return {name: t.detach() for name, t in named_leaves(Result(output, state))}


def answer(subject: Subject, x: Tensor, state: Any, result: tuple[Tensor, Any]) -> Answer:
    """The values of a result, and its gradients with respect to x, the initial state and every parameter."""
    asked = {"x": x, **dict(named_leaves(state, "initial state")), **dict(subject.module.named_parameters())}
    asked = {name: tensor for name, tensor in asked.items() if tensor.requires_grad}
    return values(*result) | gradients(Result(*result), asked)


def agree(got: Answer, exact: Answer, tolerance: float = 1e-10) -> None:
    """Demand equality up to the rounding of float64: |got − exact| ≤ tolerance · max|exact|, tensor by tensor.

    Some gradients are zero by mathematics (a bias of all keys changes no softmax), and are only rounding, of terms
    about as large as the answer's largest tensor: max|exact| counts as no less than a thousandth of that one's.
    """
    assert list(got) == list(exact)
    least = 1e-3 * max((size(t) for t in exact.values() if t.is_floating_point() or t.is_complex()), default=0.0)
    for name, expected in exact.items():
        tensor = got[name]
        assert tensor.shape == expected.shape, f"{name}: shape {list(tensor.shape)}, expected {list(expected.shape)}"
        assert tensor.dtype == expected.dtype, f"{name}: dtype {tensor.dtype}, expected {expected.dtype}"
        assert torch.isfinite(expected).all(), f"{name}: the expected values are not finite"
        found, bound = error(tensor, expected), tolerance * max(least, size(expected))
        assert found <= bound, f"{name}: difference {found:.3g}, allowed {bound:.3g}"


# Contract 2: cut anywhere ----------------------------------------------------------------------------------


def in_pieces(subject: Subject, x: Tensor, state: Any, cuts: Sequence[int]) -> tuple[Tensor, Any]:
    """The result of x read in pieces that end at `cuts`, each from the state of the one before."""
    outputs = []
    for start, stop in zip([0, *cuts], [*cuts, x.shape[1]], strict=True):
        output, state = subject(x[:, start:stop], state)
        outputs.append(output)
    return torch.cat(outputs, 1), state


@cache
def exact_whole(subject: Subject, tokens: int) -> Answer:
    """The answer to ROWS rows of so many tokens in one piece."""
    x, state = inputs(subject, ROWS, tokens, ROWS)
    return answer(subject, x, state, subject(x, state))


# Contract 3: neighbours don't matter -----------------------------------------------------------------------


def alone(subject: Subject, x: Tensor, state: Any, lengths: Sequence[int]) -> tuple[Tensor, Any]:
    """The result of sequences that lie behind each other in x [1, T, D], each run by itself."""
    outputs, states = [], []
    for row, part in enumerate(x.split(list(lengths), 1)):
        output, final = subject(part, select(state, torch.tensor([row])))
        outputs.append(output)
        states.append(final)
    return torch.cat(outputs, 1), concatenate(states)


@cache
def exact_alone(subject: Subject, lengths: tuple[int, ...]) -> Answer:
    """The answer to sequences of these lengths, each run by itself."""
    x, state = inputs(subject, 1, sum(lengths), len(lengths))
    return answer(subject, x, state, alone(subject, x, state, lengths))


def layouts(lengths: Sequence[int]) -> dict[str, list[Tensor]]:
    """Ways to pad sequences: each a list of masks [M, W], one for each segment that is read in turn."""
    length = torch.tensor(lengths)[:, None]
    longest = max(lengths)

    def left(length: Tensor, width: int) -> Tensor:
        return torch.arange(width) >= width - length

    def right(length: Tensor, width: int) -> Tensor:
        return torch.arange(width) < length

    scattered = torch.zeros(len(lengths), 2 * longest, dtype=torch.bool)
    for row, count in enumerate(lengths):
        scattered[row, torch.randperm(2 * longest, generator=torch.Generator().manual_seed(row))[:count]] = True
    first = length // 3
    return {
        "left": [left(length, longest)],
        "left, wide": [left(length, longest + 9)],
        "right": [right(length, longest)],
        "right, wide": [right(length, longest + 9)],
        "in the middle": [right(first, longest) | left(length - first, longest)],
        "everywhere": [scattered],
        "right, then right": [right(first, longest), right(length - first, longest)],
        "left, then right": [left(first, longest), right(length - first, longest + 2)],
        "right, then nothing, then left": [
            right(first, longest),
            torch.zeros(len(lengths), 3, dtype=torch.bool),
            left(length - first, longest),
        ],
    }


def padded(
    subject: Subject,
    x: Tensor,
    state: Any,
    masks: Sequence[Tensor],
    garbage: Callable[[Tensor], Tensor] = torch.zeros_like,
) -> tuple[Tensor, Any]:
    """The result of the same sequences in a padded batch, read segment by segment; put back one behind the other.

    Args:
        x: [1, R, D], the real tokens, sequence by sequence.
        masks: of each segment; together they have as many real tokens as each sequence.
        garbage: makes what stands at padding, of a tensor of that shape.
    """
    counts = torch.stack([mask.sum(1) for mask in masks])
    starts = counts.sum(0).cumsum(0) - counts.sum(0)
    outputs, places = [], []
    for mask, before in zip(masks, counts.cumsum(0) - counts, strict=True):
        begin = (starts + before).tolist()
        place = torch.cat([begin[row] + torch.arange(int(n)) for row, n in enumerate(mask.sum(1))])
        batch = garbage(x.new_empty(*mask.shape, x.shape[-1])).detach()
        batch = batch.index_put(mask.nonzero(as_tuple=True), x[0, place])
        output, state = subject(batch, state, token_mask=mask)
        assert not output[~mask].any(), "outputs at padding must be zero"
        outputs.append(output[mask])
        places.append(place)
    return torch.cat(outputs)[torch.cat(places).argsort()][None], state


# Memory ----------------------------------------------------------------------------------------------------


def kept_bytes(state: Any) -> int:
    """Bytes that a state keeps alive: whole storages, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in leaves(state)}
    return sum(storages.values())
