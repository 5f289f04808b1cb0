"""selective_scan on the native kernels, with its backward, and one token in place."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ... import native
from ..library import address, alike, boundaries, contiguous, define, kernel, nothing, rows, untouched, whole
from ..overwriting import overwrites
from .layout import groups_of

__all__ = ["scan", "step_"]

UNLIMITED = (-math.inf, math.inf)


def scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    *,
    dt_softplus: bool,
    dt_limit: tuple[float, float] | None,
    chunk_size: int | None,
    state: Tensor,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """x, dt, z [B, T, D], A [D, N], state [B, D, N] or one per packed sequence -> y [B, T, D], state.

    `chunk_size` means nothing here: the kernels have one size of tile, and one order of evaluation.
    """
    if overwrites() and bounds is None and x.shape[1] == 1:
        y = step_(state, x, dt, A, B, C, D, z, dt_bias, dt_softplus, *(dt_limit or UNLIMITED))
        return y, state
    tensors = (x, dt, A, B, C, D, z, dt_bias, state)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    y, final, _ = _forward(*tensors, boundaries(bounds), dt_softplus, *(dt_limit or UNLIMITED), keep)
    return y, final


def _given(*inputs: Any) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
    """What every kernel is given, and the tensors whose addresses are in it, which must live as long."""
    x, dt, A, B, C, D, z, dt_bias, state, bounds, softplus, low, high = inputs
    channels, states = A.shape
    x_row = dt_row = channels
    z_row = channels if z is not None else 0
    # A step passes here each time, and its tensors are mostly whole.
    if not x.is_contiguous():
        x, x_row = rows(x)
    if not dt.is_contiguous():
        dt, dt_row = rows(dt)
    if z is not None and not z.is_contiguous():
        z, z_row = rows(z)
    (B, B_row, B_group), (C, C_row, C_group) = _coefficient(B), _coefficient(C)
    alive = (x, dt, z, A.contiguous(), B, C, contiguous(D), contiguous(dt_bias), state.contiguous(), bounds)
    at_x, at_dt, at_z, at_A, at_B, at_C, at_D, at_bias, at_state, at_bounds = map(address, alive)
    given = (
        *(at_bounds, state.shape[0], x.shape[1], channels, states, groups_of(B, C), softplus, low, high),
        *(at_x, x_row, at_dt, dt_row, at_z, z_row, at_A, at_B, B_row, B_group, at_C, C_row, C_group),
        *(at_D, at_bias, at_state),
    )
    return given, alive


def _coefficient(coefficient: Tensor) -> tuple[Tensor, int, int]:
    """B or C, and how many numbers its tokens and its groups are apart: 0 where one stands for all."""
    if coefficient.ndim == 2:
        return coefficient.contiguous(), 0, 0
    states = coefficient.shape[-1]
    if coefficient.ndim == 4:
        return *rows(coefficient), states
    return (coefficient, states, 0) if coefficient.is_contiguous() else (*rows(coefficient), 0)


def _run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *inputs, keep = arguments
    x, state = inputs[0], inputs[8]
    given, alive = _given(*inputs)
    y, final, kept = alike(x), alike(state), _kept(*arguments)
    threads = torch.get_num_threads()
    if inputs[9] is None and x.shape[1] == 1 and not keep:
        kernel("selective_scan_step", x.dtype)(threads, given, address(y), address(final))
    else:
        untouched(y, kept)
        kernel("selective_scan_forward", x.dtype)(
            threads, given, address(y), address(final), address(kept) if keep else 0
        )
    del alive
    return y, final, kept


def _shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return alike(arguments[0]), alike(arguments[8]), _kept(*arguments)


def _kept(*arguments: Any) -> Tensor:
    x, _, A, B, C, _, _, _, state, *_, keep = arguments
    if not keep:
        return nothing(x)
    numbers = (x.shape[0] * x.shape[1], state.shape[0], *A.shape, groups_of(B, C))
    return x.new_empty(native.module().selective_scan_kept(*numbers))


def _run_backward(dy: Tensor, d_final: Tensor, kept: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x, dt, A, B, C, D, z, dt_bias, state = inputs[:9]
    if not kept.numel():  # a transform may ask for gradients that nobody could announce when the forward pass ran
        _, _, kept = _run(*inputs, True)
    given, alive = _given(*inputs)
    dy, dy_row = rows(dy)
    d_final = d_final.contiguous()
    threads = torch.get_num_threads()
    groups = groups_of(B, C)
    pieces = native.module().selective_scan_pieces(threads, A.shape[0], groups)

    def per_thread(tensor: Tensor | None) -> Tensor:
        return x.new_zeros(0) if tensor is None else tensor.new_zeros(threads, *tensor.shape)

    def partial(coefficient: Tensor) -> Tensor:
        """A timed one in sums over the channels that share it piece by piece, one that is constant by threads."""
        if coefficient.ndim == 2:
            return per_thread(coefficient)
        return coefficient.new_empty(pieces * (groups if coefficient.ndim == 3 else 1), *coefficient.shape)

    dx, d_dt, dz, d_state = alike(x), alike(dt), nothing(x) if z is None else alike(z), alike(state)
    untouched(dx, d_dt, dz)
    sums = [per_thread(A), partial(B), partial(C), per_thread(D), per_thread(dt_bias)]
    at_dA, at_dB, at_dC, at_dD, at_d_bias = map(address, sums)
    kernel("selective_scan_backward", x.dtype)(
        *(threads, given, x.shape[0] * x.shape[1], pieces, address(kept), address(dy), dy_row, address(d_final)),
        *(address(dx), address(d_dt), at_dA, at_dB, at_dC, at_dD, address(dz), at_d_bias, address(d_state)),
    )
    del alive
    dA, dB, dC, dD, d_bias = (t if t.ndim == 1 else t[0] if len(t) == 1 else t.sum(0) for t in sums)
    return dx, d_dt, dA, dB, dC, dD, dz, d_bias, d_state


def _shapes_of_backward(dy: Tensor, d_final: Tensor, kept: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(inputs[0].new_empty(0) if t is None else alike(t) for t in inputs[:9])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.softplus, ctx.low, ctx.high, _ = inputs
    kept = output[2]
    ctx.save_for_backward(kept, *tensors)
    ctx.mark_non_differentiable(kept)
    ctx.set_materialize_grads(False)  # of the kept states


def _differentiate(ctx: Any, dy: Tensor | None, d_final: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    kept, *inputs = ctx.saved_tensors
    x, state = inputs[0], inputs[8]
    dy = torch.zeros_like(x) if dy is None else dy
    d_final = torch.zeros_like(state) if d_final is None else d_final
    gradients = _backward(dy, d_final, kept, *inputs, ctx.softplus, ctx.low, ctx.high)
    asked = (None if t is None else gradient for gradient, t in zip(gradients, inputs[:9], strict=True))
    return (*asked, None, None, None, None, None)


_INPUTS = "Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias"
_OPTIONS = "bool softplus, float low, float high"
_forward = define(
    f"selective_scan({_INPUTS}, Tensor state, Tensor? bounds, {_OPTIONS}, bool keep) -> (Tensor, Tensor, Tensor)",
    _run,
    _shapes,
    backward=_differentiate,
    save=_save,
)
_backward = define(
    "selective_scan_backward(Tensor dy, Tensor d_final, Tensor kept, "
    f"{_INPUTS}, Tensor state, Tensor? bounds, {_OPTIONS}) -> ({', '.join(['Tensor'] * 9)})",
    _run_backward,
    _shapes_of_backward,
)


def _run_step(state: Tensor, *arguments: Any) -> Tensor:
    whole("selective_scan_step_", state)
    *inputs, softplus, low, high = arguments
    given, alive = _given(*inputs, state, None, softplus, low, high)
    x = inputs[0]
    y = alike(x)
    kernel("selective_scan_step", x.dtype)(torch.get_num_threads(), given, address(y), address(state))
    del alive
    return y


#: One token [B, 1, ...] of each row: the state is overwritten by the next one. No gradients.
step_ = define(
    f"selective_scan_step_(Tensor(a!) state, {_INPUTS}, {_OPTIONS}) -> Tensor",
    _run_step,
    lambda state, x, *rest: alike(x),
)
