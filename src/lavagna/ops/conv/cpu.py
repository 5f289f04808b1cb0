"""short_conv on the native kernels, with its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import Call
from ..library import address, alike, boundaries, contiguous, define, kernel, rows, whole
from ..overwriting import overwrites

__all__ = ["convolve", "refuses", "step_"]

WIDEST = 8


def refuses(call: Call) -> list[str]:
    """Refuse windows that do not fit into the registers of the kernels."""
    weight = call.fixed["weight"]
    assert weight is not None
    return [] if weight.shape[1] <= WIDEST else [f"its kernels have widths W from 1 to {WIDEST}, got {weight.shape[1]}"]


def convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    activation: str | None,
    state: Tensor,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """x [B, T, D], weight [D, W], state [B, W-1, D] or one per packed sequence -> y [B, T, D], state."""
    silu = activation == "silu"
    if overwrites() and bounds is None and x.shape[1] == 1:
        return step_(state, x, weight, bias, silu), state
    return _forward(x, weight, bias, state, boundaries(bounds), silu)


def _sizes(x: Tensor, weight: Tensor, state: Tensor, bounds: Tensor | None, silu: bool) -> tuple[Any, ...]:
    return (torch.get_num_threads(), address(bounds), state.shape[0], x.shape[1], *weight.shape, silu)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, bounds: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    tail = alike(state)
    return _convolve(x, weight, bias, state.contiguous(), bounds, silu, tail), tail


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    silu: bool,
    tail: Tensor,
) -> Tensor:
    """y; the last inputs go into the tail, which may be the state itself."""
    x_rows, x_row = rows(x)
    weight, bias, y = weight.contiguous(), contiguous(bias), alike(x)
    kernel("short_conv_forward", x.dtype)(
        *_sizes(x, weight, state, bounds, silu),
        *(address(x_rows), x_row, address(weight), address(bias), address(state), address(y), address(tail)),
    )
    return y


def _run_backward(dy: Tensor, d_tail: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, bias, state, bounds, silu = inputs
    (x_rows, x_row), (dy_rows, dy_row) = rows(x), rows(dy)
    weight, state, d_tail = weight.contiguous(), state.contiguous(), d_tail.contiguous()
    bias = contiguous(bias)
    dx, d_weight, d_bias, d_state = _shapes_of_backward(dy, d_tail, *inputs)
    kernel("short_conv_backward", x.dtype)(
        *_sizes(x, weight, state, bounds, silu),
        *(address(x_rows), x_row, address(weight), address(bias), address(state)),
        *(address(dy_rows), dy_row, address(d_tail)),
        *(address(dx), address(d_weight), 0 if bias is None else address(d_bias), address(d_state)),
    )
    return dx, d_weight, d_bias, d_state


def _shapes_of_backward(dy: Tensor, d_tail: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, weight, bias, state, _, _ = inputs
    d_bias = x.new_empty(0 if bias is None else len(bias))
    return x.new_empty(x.shape), weight.new_empty(weight.shape), d_bias, state.new_empty(state.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor, d_tail: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, bias, state, bounds = ctx.saved_tensors
    dx, d_weight, d_bias, d_state = _backward(dy, d_tail, x, weight, bias, state, bounds, ctx.silu)
    return dx, d_weight, None if bias is None else d_bias, d_state, None, None


_INPUTS = "Tensor x, Tensor weight, Tensor? bias, Tensor state, Tensor? bounds, bool silu"
_forward = define(
    f"short_conv({_INPUTS}) -> (Tensor, Tensor)",
    _run,
    lambda x, weight, bias, state, bounds, silu: (x.new_empty(x.shape), state.new_empty(state.shape)),
    backward=_differentiate,
    save=_save,
)
_backward = define(
    f"short_conv_backward(Tensor dy, Tensor d_tail, {_INPUTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _shapes_of_backward,
)


def _run_step(state: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    whole("short_conv_step_", state)
    return _convolve(x, weight, bias, state, None, silu, state)


#: One token [B, 1, D] of each row: the state is overwritten by the next one. No gradients.
step_ = define(
    "short_conv_step_(Tensor(a!) state, Tensor x, Tensor weight, Tensor? bias, bool silu) -> Tensor",
    _run_step,
    lambda state, x, weight, bias, silu: alike(x),
)
