"""States of any kind are walked, weighed and cut."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.audit.trees import batch_axes, held_bytes, map_leaves, rows, tensors


class Pair(NamedTuple):
    a: Tensor
    b: Tensor | None


class Box:
    def __init__(self, rows: int) -> None:
        self.keys = torch.arange(rows * 3.0).view(1, rows, 3)
        self.layers = {0: [torch.zeros(rows, 2)], "count": 7}
        self.owner = self


def test_tensors_are_found_everywhere_and_once() -> None:
    box = Box(2)
    state = (Pair(torch.ones(2), None), box, box.keys)
    assert [list(t.shape) for t in tensors(state)] == [[2], [1, 2, 3], [2, 2]]


def test_bytes_are_those_of_whole_memories_each_once() -> None:
    big = torch.zeros(100)
    assert held_bytes([big[:1], big[5:7]]) == 400
    assert held_bytes((torch.zeros(2, dtype=torch.float64), None)) == 16


def test_mapping_keeps_the_kind_and_the_original() -> None:
    box = Box(2)
    doubled = map_leaves(lambda t: 2 * t, {"x": (Pair(torch.ones(2), None), [box])})
    assert isinstance(doubled["x"][0], Pair)
    assert isinstance(doubled["x"][1][0], Box)
    assert doubled["x"][0].a.tolist() == [2, 2]
    assert doubled["x"][1][0].layers["count"] == 7
    assert box.keys[0, 1, 0] == 3
    assert doubled["x"][1][0].keys[0, 1, 0] == 6


def test_rows_are_cut_where_the_batch_is() -> None:
    axes = batch_axes(Box(2), Box(3))
    assert axes == [1, 0]
    cut = rows(Box(2), axes, torch.tensor([1, 1]))
    assert cut.keys.tolist() == [[[3, 4, 5], [3, 4, 5]]]
    assert batch_axes([torch.zeros(6)], [torch.zeros(9)]) == [None]
