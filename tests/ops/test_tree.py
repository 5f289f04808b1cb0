from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from lavagna.ops.tree import concatenate, leaves, map_tensors, named_leaves, nbytes, select


class Pair(NamedTuple):
    S: Tensor
    z: Tensor | None


class Layers:
    """A state with its own map_tensors."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def map_tensors(self, function: Callable[..., Tensor], *others: Layers) -> Layers:
        return Layers(
            **{n: map_tensors(function, part, *[o.parts[n] for o in others]) for n, part in self.parts.items()}
        )

    def named_tensors(self) -> Iterator[tuple[str, Any]]:
        yield from self.parts.items()


def state(start: float = 0) -> tuple[Any, ...]:
    numbers = torch.arange(start, start + 6).reshape(3, 2)
    return (numbers, None, Pair(numbers + 10, None), Layers(first=numbers + 20, last=(numbers + 30,)))


NAMES = ["0", "2.S", "3.first", "3.last.0"]


def test_leaves_are_named_and_in_order() -> None:
    assert [name for name, _ in named_leaves(state())] == NAMES
    assert [leaf[0, 0].item() for leaf in leaves(state())] == [0, 10, 20, 30]
    assert [name for name, _ in named_leaves(state(), "layer")] == [f"layer.{name}" for name in NAMES]


def test_a_tensor_is_a_state_and_so_is_nothing() -> None:
    tensor = torch.ones(2)
    assert list(named_leaves(tensor, "S")) == [("S", tensor)]
    assert leaves(None) == []
    assert map_tensors(torch.neg, None) is None
    assert torch.equal(map_tensors(torch.neg, tensor), -tensor)


def test_mapping_keeps_the_kinds() -> None:
    mapped = map_tensors(torch.neg, state())
    assert type(mapped) is tuple
    assert mapped[1] is None
    assert type(mapped[2]) is Pair
    assert mapped[2].z is None
    assert type(mapped[3]) is Layers
    for got, before in zip(leaves(mapped), leaves(state()), strict=True):
        assert torch.equal(got, -before)


def test_mapping_several_states_meets_the_same_places() -> None:
    mapped = map_tensors(lambda a, b, c: a + b - c, state(), state(100), state(7))
    for got, before in zip(leaves(mapped), leaves(state(93)), strict=True):
        assert torch.equal(got, before)


def test_states_of_different_lengths_do_not_map() -> None:
    with pytest.raises(ValueError, match="zip"):
        map_tensors(torch.add, (torch.ones(1), torch.ones(1)), (torch.ones(1),))


def test_bytes_are_those_of_every_tensor() -> None:
    assert nbytes(state()) == 4 * 6 * 8  # int64
    assert nbytes((torch.zeros(3, dtype=torch.float64), torch.zeros(5, dtype=torch.bfloat16))) == 34
    assert nbytes(None) == 0


def test_rows_are_selected_in_order_and_may_repeat() -> None:
    chosen = select(state(), torch.tensor([2, 0, 2, 2]))
    for got, before in zip(leaves(chosen), leaves(state()), strict=True):
        assert torch.equal(got, torch.stack([before[2], before[0], before[2], before[2]]))
    assert [tuple(leaf.shape) for leaf in leaves(select(state(), torch.tensor([], dtype=torch.int64)))] == [(0, 2)] * 4


def test_concatenating_the_rows_gives_the_whole() -> None:
    rows = [select(state(), torch.tensor(index)) for index in ([0], [1, 2])]
    for got, before in zip(leaves(concatenate(rows)), leaves(state()), strict=True):
        assert torch.equal(got, before)
    assert concatenate([None, None]) is None


def test_gradients_pass_through() -> None:
    x = torch.ones(3, 2, requires_grad=True)
    sum(leaf.sum() for leaf in leaves(select((x, Pair(x * 2, None)), torch.tensor([1, 1])))).backward()
    assert x.grad.tolist() == [[0, 0], [6, 6], [0, 0]]
