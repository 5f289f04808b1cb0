"""Halving of chunks against the sums written out pair by pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lavagna.ops.halving import Absorbed, halve

from ..support.budget import check, close


def written_out(rows: list[Tensor], column: Tensor, log_decay: Tensor, reads_first: bool) -> Absorbed:
    """The definition; every exponent is a sum over its own tokens."""
    C = column.shape[-2]
    since = 0 if reads_first else 1

    def exponent(start: int, stop: int) -> Tensor:
        return log_decay[..., start:stop, :].sum(-2).exp()

    decays = [exponent(0, i + since) for i in range(C)]
    scores = []
    for row in rows:
        score = [
            [
                (row[..., i, :] * exponent(j + 1, i + since) * column[..., j, :]).sum(-1)
                if j < i + since
                else torch.zeros_like(row[..., 0, 0])
                for j in range(C)
            ]
            for i in range(C)
        ]
        scores.append(torch.stack([torch.stack(line, -1) for line in score], -2))
    return Absorbed(
        tuple(row * torch.stack(decays, -2) for row in rows),
        column * torch.stack([exponent(j + 1, C) for j in range(C)], -2),
        exponent(0, C),
        tuple(scores),
    )


def parts(found: Absorbed) -> list[Tensor]:
    return [*found.rows, found.column, found.total, *found.scores]


def draw(C: int, rows: int = 2, K: int = 3, extreme: bool = False) -> tuple[list[Tensor], Tensor, Tensor]:
    log_decay = -torch.rand(2, 2, C, K, dtype=torch.float64)
    if extreme:
        log_decay = torch.tensor([-1e4, -87.0, -0.1, 0.0], dtype=torch.float64)[torch.randint(4, log_decay.shape)]
    normal = [torch.randn(2, 2, C, K, dtype=torch.float64) for _ in range(rows + 1)]
    return normal[:-1], normal[-1], log_decay


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("C", [1, 2, 3, 7, 8, 13])
def test_definition(C: int, reads_first: bool) -> None:
    rows, column, log_decay = draw(C)
    found = parts(halve(rows, column, log_decay, reads_first=reads_first))
    for got, exact in zip(found, parts(written_out(rows, column, log_decay, reads_first)), strict=True):
        close("part", got, exact, 1e-14)


@pytest.mark.parametrize("reads_first", [False, True])
@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_are_derivatives(rows: int, reads_first: bool) -> None:
    several, column, log_decay = draw(5, rows)

    def function(column: Tensor, log_decay: Tensor, *several: Tensor) -> tuple[Tensor, ...]:
        return tuple(parts(halve(several, column, log_decay, reads_first=reads_first)))

    inputs = [t.requires_grad_() for t in (column, log_decay, *several)]
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("reads_first", [False, True])
def test_extreme_decays_in_float32(reads_first: bool) -> None:
    def answer(function, dtype: torch.dtype) -> list[Tensor]:
        leaves = [t.to(dtype).requires_grad_() for t in (*rows, column, log_decay)]
        found = parts(function(leaves[:2], leaves[2], leaves[3], reads_first))
        ups = [torch.randn(t.shape, generator=torch.Generator().manual_seed(0)).to(dtype) for t in found]
        return [*found, *torch.autograd.grad(found, leaves, ups)]

    rows, column, log_decay = draw(16, extreme=True)
    got = answer(lambda r, c, g, first: halve(r, c, g, reads_first=first), torch.float32)
    same, exact = answer(written_out, torch.float32), answer(written_out, torch.float64)
    for number, triple in enumerate(zip(got, same, exact, strict=True)):
        check(f"tensor {number}", *triple)


def test_inputs_of_a_part_alone_and_expanded_upstream_gradients() -> None:
    """A loss on one of the four parts leaves the others without a gradient."""
    rows, column, log_decay = draw(6)
    leaves = [t.requires_grad_() for t in (*rows, column, log_decay)]
    exact = parts(written_out(leaves[:2], leaves[2], leaves[3], False))
    for number, part in enumerate(parts(halve(leaves[:2], leaves[2], leaves[3]))):
        found = torch.autograd.grad(part.sum(), leaves, retain_graph=True, materialize_grads=True)
        wanted = torch.autograd.grad(exact[number].sum(), leaves, retain_graph=True, materialize_grads=True)
        for got, want in zip(found, wanted, strict=True):
            close(f"gradient of part {number}", got, want, 1e-13)


def test_any_strides() -> None:
    rows, column, log_decay = draw(8)
    expected = parts(halve(rows, column, log_decay))
    turned = [x.mT.contiguous().mT for x in (*rows, column, log_decay)]
    for got, exact in zip(parts(halve(turned[:-2], turned[-2], turned[-1])), expected, strict=True):
        assert torch.equal(got, exact)
