"""Where the numbers lie in memory changes nothing, and nobody writes on what was handed in; for every operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lavagna.ops.dispatch import Row
from lavagna.ops.spec import Case, OpSpec
from lavagna.ops.tree import leaves, map_tensors

from ..support.budget import close, close_all
from ..support.operators import (
    answer,
    asking,
    changed,
    double,
    draw,
    each,
    every_shape,
    few,
    mapped,
    named_inputs,
    packed,
    run,
    timed_names,
    variety,
)

EQUAL = 1e-12  # other strides may mean other products of the same library: float64 up to rounding


def every_other(tensor: Tensor) -> Tensor:
    """The same numbers, with one of NaN behind each."""
    if tensor.ndim == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    return torch.stack([tensor, torch.full_like(tensor, float("nan"))], -1)[..., 0]


def reversed_strides(tensor: Tensor) -> Tensor:
    """The same numbers, the first dimension the fastest."""
    order = list(range(tensor.ndim))[::-1]
    return tensor.permute(order).contiguous().permute(order)


def batch_first_in_time(tensor: Tensor) -> Tensor:
    """The same numbers, time before the batch: what a transposed [T, B, ...] is."""
    return tensor.transpose(0, 1).contiguous().transpose(0, 1) if tensor.ndim >= 2 else tensor


def between_nans(tensor: Tensor) -> Tensor:
    """The same numbers, with 64 of NaN before the first and 64 behind the last."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    room = torch.full((tensor.numel() + 128,), float("nan"), dtype=tensor.dtype)
    inside = room[64 : 64 + tensor.numel()].view(tensor.shape)
    inside.copy_(tensor)
    return inside


LAYOUTS = [every_other, reversed_strides, batch_first_in_time, between_nans]


def check_layouts(spec: OpSpec, row: Row, case: Case, layouts: Sequence[Callable[[Tensor], Tensor]]) -> None:
    inputs = double(draw(spec, case))
    expected = answer(spec, row, inputs)
    for layout in layouts:
        close_all(answer(spec, row, mapped(inputs, layout)), expected, EQUAL)


@each(lambda spec: few(spec, B=2, T=20), native_subset=True)
def test_strides_do_not_matter(spec: OpSpec, row: Row, case: Case) -> None:
    check_layouts(spec, row, case, LAYOUTS)


@each(every_shape, native_subset=True)
def test_nothing_is_read_beyond_the_ends(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = draw(spec, case)
    close_all(answer(spec, row, mapped(inputs, between_nans)), answer(spec, row, inputs), 1e-6)


@each(lambda spec: variety(spec)[:1])
def test_packed_sequences_of_any_strides(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, bounds = packed(spec, case, (3, 0, 9))
    expected = answer(spec, row, inputs, cu_seqlens=bounds)
    for layout in LAYOUTS:
        close_all(answer(spec, row, mapped(inputs, layout), cu_seqlens=bounds), expected, EQUAL)


@each(lambda spec: few(spec, B=2, T=20)[:2])
def test_expanded_inputs_equal_copies(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = double(draw(spec, case))
    state = map_tensors(lambda t: t[:1].expand_as(t), inputs.state)
    for dim in (0, 1, -1):
        same = {
            name: inputs.tensors[name].narrow(dim, 0, 1).expand_as(inputs.tensors[name])
            for name in timed_names(spec, inputs)
        }
        expanded = changed(inputs, **same)._replace(state=state)
        close_all(answer(spec, row, expanded), answer(spec, row, mapped(expanded, lambda t: t.contiguous())), EQUAL)


@each(lambda spec: few(spec, B=2, T=20))
def test_upstream_gradients_of_any_strides(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = asking(spec, double(draw(spec, case)))
    named = named_inputs(inputs)
    result = run(spec, row, inputs)
    results = [t for t in leaves(result) if t.requires_grad]
    random = [torch.randn_like(t) for t in results]
    ones = [torch.ones_like(t) for t in results]
    expanded = [torch.ones((), dtype=t.dtype).expand_as(t) for t in results]  # what .sum().backward() sends
    for some, plain in (
        (expanded, ones),
        ([reversed_strides(t) for t in random], random),
        ([every_other(t) for t in random], random),
    ):
        found, expected = (
            torch.autograd.grad(results, list(named.values()), ups, retain_graph=True, materialize_grads=True)
            for ups in (some, plain)
        )
        for name, got, exact in zip(named, found, expected, strict=True):
            close(f"gradient of {name}", got, exact, EQUAL)


@each(lambda spec: few(spec, B=2, T=20))
def test_nothing_handed_in_is_written_on(spec: OpSpec, row: Row, case: Case) -> None:
    for inputs in (draw(spec, case), double(draw(spec, case))):
        tensors = [t for t in (*inputs.tensors.values(), *leaves(inputs.state)) if t is not None]
        before = [(t.clone(), t._version) for t in tensors]
        answer(spec, row, inputs)
        with torch.inference_mode():
            state = run(spec, row, inputs).state
            once = [t.clone() for t in leaves(state)]
            run(spec, row, inputs._replace(state=state))
        for tensor, (copy, version) in zip(tensors, before, strict=True):
            assert torch.equal(tensor, copy)
            assert tensor._version == version
        for tensor, copy in zip(leaves(state), once, strict=True):
            assert torch.equal(tensor, copy)
