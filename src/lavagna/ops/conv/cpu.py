"""short_conv on the native kernels, with its backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dispatch import Call
from ..library import address, alike, boundaries, contiguous, define, kernel, rows

__all__ = ["convolve", "refuses"]

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
    return _forward(x, weight, bias, state, boundaries(bounds), activation == "silu")


def _sizes(x: Tensor, weight: Tensor, state: Tensor, bounds: Tensor | None, silu: bool) -> tuple[Any, ...]:
    return (torch.get_num_threads(), address(bounds), state.shape[0], x.shape[1], *weight.shape, silu)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, bounds: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor]:
    x_rows, x_row = rows(x)
    weight, state = weight.contiguous(), state.contiguous()
    bias = contiguous(bias)
    y, tail = alike(x), alike(state)
    kernel("short_conv_forward", x.dtype)(
        *_sizes(x, weight, state, bounds, silu),
        *(address(x_rows), x_row, address(weight), address(bias), address(state), address(y), address(tail)),
    )
    return y, tail


def _run_backward(
    dy: Tensor,
    d_tail: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    (x_rows, x_row), (dy_rows, dy_row) = rows(x), rows(dy)
    weight, state, d_tail = weight.contiguous(), state.contiguous(), d_tail.contiguous()
    bias = contiguous(bias)
    dx, d_weight, d_bias, d_state = _shapes_of_backward(dy, d_tail, x, weight, bias, state, bounds, silu)
    kernel("short_conv_backward", x.dtype)(
        *_sizes(x, weight, state, bounds, silu),
        *(address(x_rows), x_row, address(weight), address(bias), address(state)),
        *(address(dy_rows), dy_row, address(d_tail)),
        *(address(dx), address(d_weight), 0 if bias is None else address(d_bias), address(d_state)),
    )
    return dx, d_weight, d_bias, d_state


def _shapes_of_backward(
    dy: Tensor,
    d_tail: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
