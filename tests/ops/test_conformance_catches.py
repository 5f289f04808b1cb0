"""Implementations of short_conv that break one contract each, and the test of the suite that must see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.ops.conv import parallel
from lavagna.ops.dispatch import Row
from lavagna.ops.spec import load_spec

from ..support.operators import reference_row, resized
from . import test_conformance as contracts
from . import test_layout as layouts

Converted = tuple[Tensor, Tensor]


def convolve(x: Tensor, **arguments: Any) -> Converted:
    """The right one."""
    return parallel.convolve(x, **arguments)


def loses_the_state(x: Tensor, *, state: Tensor, **arguments: Any) -> Converted:
    return convolve(x, state=torch.zeros_like(state), **arguments)


def returns_the_old_state(x: Tensor, *, state: Tensor, **arguments: Any) -> Converted:
    return convolve(x, state=state, **arguments)[0], state


def cuts_the_gradient_through_the_state(x: Tensor, *, state: Tensor, **arguments: Any) -> Converted:
    return convolve(x, state=state.detach(), **arguments)


def cuts_the_gradient_of_a_weight(x: Tensor, *, weight: Tensor, **arguments: Any) -> Converted:
    return convolve(x, weight=torch.cat([weight[:1].detach(), weight[1:]]), **arguments)


def is_a_little_wrong(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return output * (1 + 3e-5), state


def rounds_to_half_precision(x: Tensor, **arguments: Any) -> Converted:
    return convolve(x.to(torch.bfloat16).to(x.dtype), **arguments)


def rounds_the_state(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return output, state.to(torch.bfloat16).to(state.dtype)


def returns_a_state_of_half_precision(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return output, state.to(torch.bfloat16)


def sees_the_future(x: Tensor, **arguments: Any) -> Converted:
    return convolve(x + 1e-6 * x.mean(1, keepdim=True), **arguments)


def sees_the_next_token_of_a_chunk(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    if output.shape[1] > 64:
        output = torch.cat([output[:, :63], output[:, 63:64] + 1e-9 * x[:, 64:65], output[:, 64:]], 1)
    return output, state


def mixes_rows(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return output + 1e-9 * output.sum(0), state


def ignores_boundaries(x: Tensor, *, state: Tensor, bounds: list[int] | None, **arguments: Any) -> Converted:
    if bounds is None or len(bounds) < 2:
        return convolve(x, state=state, bounds=bounds, **arguments)
    output, _ = convolve(x, state=state[:1], bounds=None, **arguments)
    return output, convolve(x, state=state, bounds=bounds, **arguments)[1]


def swaps_the_states_of_sequences(x: Tensor, *, bounds: list[int] | None, **arguments: Any) -> Converted:
    output, state = convolve(x, bounds=bounds, **arguments)
    return output, state if bounds is None else state.flip(0)


def divides_by_the_norm(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return output * (x.norm() / x.norm()), state


def keeps_all_tokens(x: Tensor, *, state: Tensor, bounds: list[int] | None, **arguments: Any) -> Converted:
    return convolve(x, state=state, bounds=bounds, **arguments)[0], torch.cat([state, x], 1)


def keeps_a_view(x: Tensor, *, state: Tensor, **arguments: Any) -> Converted:
    output, _ = convolve(x, state=state, **arguments)
    return output, torch.cat([state, x], 1)[:, x.shape[1] :]


def _dense(tensor: Tensor) -> Tensor:
    """Read the memory as if the tensor were contiguous."""
    return tensor.as_strided(tensor.shape, torch.empty(tensor.shape, device="meta").stride())


def reads_as_if_contiguous(x: Tensor, **arguments: Any) -> Converted:
    dense = x.numel() <= x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return convolve(_dense(x) if dense else x, **arguments)


def reads_beyond_the_end(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    room = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    behind = x.detach().as_strided((min(room, x.numel() + 4),), (1,))
    return output + 0 * behind.sum(), state


class _Doubled(torch.autograd.Function):
    """The identity, whose backward reads the incoming gradient as if it were contiguous."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        room = gradient.untyped_storage().nbytes() // gradient.element_size() - gradient.storage_offset()
        return _dense(gradient).clone() if gradient.numel() <= room else torch.zeros_like(gradient)


def trusts_the_strides_of_a_gradient(x: Tensor, **arguments: Any) -> Converted:
    output, state = convolve(x, **arguments)
    return _Doubled.apply(output), state


def writes_on_its_input(x: Tensor, **arguments: Any) -> Converted:
    answer = convolve(x, **arguments)
    with torch.no_grad():
        x.detach().mul_(1)
    return answer


def writes_on_the_state(x: Tensor, *, state: Tensor, **arguments: Any) -> Converted:
    output, final = convolve(x, state=state, **arguments)
    state.detach().copy_(final.detach())
    return output, state


def forgets_what_is_not_asked_for(x: Tensor, *, weight: Tensor, **arguments: Any) -> Converted:
    return convolve(x, weight=weight if x.requires_grad else weight.detach(), **arguments)


BREAKS: dict[Callable[..., Converted], Callable[..., None]] = {
    loses_the_state: contracts.test_pieces_of_any_length_equal_the_whole,
    returns_the_old_state: contracts.test_one_token_at_a_time_equals_the_whole,
    cuts_the_gradient_through_the_state: contracts.test_one_token_at_a_time_equals_the_whole,
    cuts_the_gradient_of_a_weight: contracts.check_float64,
    is_a_little_wrong: contracts.check_float32,
    rounds_to_half_precision: contracts.check_float32,
    rounds_the_state: contracts.check_float64,
    sees_the_future: contracts.test_changing_a_token_changes_nothing_before_it,
    sees_the_next_token_of_a_chunk: contracts.test_the_past_has_no_gradient_from_the_future,
    mixes_rows: contracts.test_rows_of_a_batch_do_not_meet,
    ignores_boundaries: contracts.test_packed_sequences_equal_each_alone,
    swaps_the_states_of_sequences: contracts.test_packed_sequences_equal_each_alone,
    divides_by_the_norm: contracts.test_zeros_are_inputs_like_any_other,
    keeps_all_tokens: contracts.test_the_state_does_not_grow,
    keeps_a_view: contracts.test_the_state_keeps_no_other_memory_alive,
    reads_beyond_the_end: layouts.test_nothing_is_read_beyond_the_ends,
    trusts_the_strides_of_a_gradient: layouts.test_upstream_gradients_of_any_strides,
    writes_on_its_input: layouts.test_nothing_handed_in_is_written_on,
    writes_on_the_state: layouts.test_nothing_handed_in_is_written_on,
    forgets_what_is_not_asked_for: contracts.test_a_gradient_does_not_depend_on_which_others_are_asked_for,
}


def call(
    test: Callable[..., None], function: Callable[..., Converted], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> None:
    spec = load_spec("short_conv")
    row = Row("torch", "parallel", f"{__name__}:{function.__name__}", packs=True)
    monkeypatch.setattr(spec.table, "rows", (row, reference_row(spec)))
    for memory in ("_chosen", "_plans"):  # of what was chosen among the other rows
        monkeypatch.setattr(spec.table, memory, {})
    case = resized(spec.cases[0], B=3, T=130)
    test(spec, row, case, **more)


@pytest.mark.parametrize("function", BREAKS, ids=lambda function: function.__name__)
def test_a_broken_implementation_is_seen(function: Callable[..., Converted], monkeypatch: pytest.MonkeyPatch) -> None:
    call(BREAKS[function], convolve, monkeypatch)
    with pytest.raises(AssertionError):
        call(BREAKS[function], function, monkeypatch)


def test_a_state_of_half_precision_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    test = contracts.test_one_answer_in_half_precision
    call(test, convolve, monkeypatch)
    with pytest.raises(AssertionError):
        call(test, returns_a_state_of_half_precision, monkeypatch)


def test_reading_as_if_contiguous_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for layout in layouts.LAYOUTS[:3]:
        call(layouts.check_layouts, convolve, monkeypatch, layouts=[layout])
        with pytest.raises(AssertionError):
            call(layouts.check_layouts, reads_as_if_contiguous, monkeypatch, layouts=[layout])
