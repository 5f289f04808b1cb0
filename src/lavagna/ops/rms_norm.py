"""RMSNorm with the gate of a mixer's output, in one pass: no recurrence, but beside every one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import ShapeError
from .constants import widened
from .dispatch import automatic_is_native, device_of
from .library import address, alike, define, kernel, rows

__all__ = ["GATES", "rms_norm"]

#: the functions of a gate, in the order of the kernels' enumeration behind "none"
GATES: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "sigmoid": torch.sigmoid}
_NUMBERS: dict[str | None, int] = {None: 0} | {name: 1 + i for i, name in enumerate(GATES)}


def rms_norm(
    x: Tensor,
    weight: Tensor,
    gate: Tensor | None = None,
    *,
    act: str = "silu",
    gate_first: bool = False,
    eps: float = 1e-5,
) -> Tensor:
    """Divide by the root mean square of the channels of each head, weigh, and gate.

        y = weight ∘ x / rms(x) ∘ act(gate),  rms(x) = sqrt(mean(x²) + eps)
        gate_first: y = weight ∘ u / rms(u) with u = x ∘ act(gate)

    Args:
        x: [..., N] or, with a weight for each head, [..., heads, N]; float32 or float64.
        weight: [N] or [heads, N].
        gate: of x's shape, before act; or None.
        act: "silu" or "sigmoid".
        gate_first: the gate acts before the norm.
        eps: added to the mean square.

    Returns:
        y of x's shape and dtype.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.

    Numerics:
        In x's dtype. On the native kernels the weight's gradient is summed in an order that depends on the number of
        rows alone.

    Source:
        Zhang & Sennrich 2019; with the gate behind it as in RetNet (Sun et al. 2023), before it as in Mamba-2.
    """
    _check(x, weight, gate)
    weight = widened(weight, x.dtype)
    gate = None if gate is None else gate.to(x.dtype)
    if x.device.type == "cpu" and x.numel() and automatic_is_native():
        return _forward(x, weight, gate, _NUMBERS[None if gate is None else act], gate_first, eps)
    factor = None if gate is None else GATES[act](gate)
    if factor is not None and gate_first:
        x = x * factor
    y = F.rms_norm(x, (x.shape[-1],), eps=eps) * weight
    return y if factor is None or gate_first else y * factor


def _check(x: Tensor, weight: Tensor, gate: Tensor | None) -> None:
    if x.dtype not in (torch.float32, torch.float64):
        raise ShapeError(f"rms_norm: x must be float32 or float64, got {x.dtype}")
    if weight.ndim not in (1, 2) or weight.shape != x.shape[-weight.ndim :]:
        raise ShapeError(
            f"rms_norm: weight must be [N] or [heads, N] as x ends, got {list(weight.shape)} for x {list(x.shape)}"
        )
    if weight.device != x.device:
        device_of("rms_norm", x=x, weight=weight)
    if gate is not None:
        if gate.shape != x.shape:
            raise ShapeError(f"rms_norm: gate must have the shape of x, {list(x.shape)}, got {list(gate.shape)}")
        if gate.device != x.device:
            device_of("rms_norm", x=x, gate=gate)


def _as_rows(x: Tensor, weight: Tensor) -> tuple[Tensor, int]:
    """Tokens of [heads, N], and how many numbers apart they begin."""
    if x.is_contiguous():
        return x, weight.numel()
    return rows(x.reshape(1, -1, *x.shape[-weight.ndim :]))


def _arguments(
    x: Tensor, weight: Tensor, gate: Tensor | None, act: int, gate_first: bool, eps: float
) -> tuple[tuple[Any, ...], tuple[Tensor, ...]]:
    """What the kernels take first, and the tensors that must live until they are done."""
    x_rows, x_row = _as_rows(x, weight)
    gate_rows, gate_row = (None, 0) if gate is None else _as_rows(gate, weight)
    weight = weight.contiguous()
    heads, size = (1, *weight.shape)[-2:]
    tokens = x.numel() // (heads * size)
    sizes = (torch.get_num_threads(), tokens, heads, size, weight.ndim == 2, act, gate_first, eps)
    data = (address(x_rows), x_row, address(weight), address(gate_rows), gate_row)
    return (*sizes, *data), (x_rows, weight, x_rows if gate_rows is None else gate_rows)


def _run(x: Tensor, weight: Tensor, gate: Tensor | None, act: int, gate_first: bool, eps: float) -> Tensor:
    arguments, _alive = _arguments(x, weight, gate, act, gate_first, eps)
    y = alike(x)
    kernel("rms_norm_forward", x.dtype)(*arguments, address(y))
    return y


def _run_backward(
    dy: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, act: int, gate_first: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    arguments, _alive = _arguments(x, weight, gate, act, gate_first, eps)
    dy_rows, dy_row = _as_rows(dy, weight)
    dx, d_weight, d_gate = _shapes_of_backward(dy, x, weight, gate, act, gate_first, eps)
    kernel("rms_norm_backward", x.dtype)(
        *arguments, address(dy_rows), dy_row, address(dx), address(d_weight), 0 if gate is None else address(d_gate)
    )
    return dx, d_weight, d_gate


def _shapes_of_backward(
    dy: Tensor, x: Tensor, weight: Tensor, gate: Tensor | None, act: int, gate_first: bool, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(0 if gate is None else x.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.act, ctx.gate_first, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, gate = ctx.saved_tensors
    dx, d_weight, d_gate = _backward(dy, x, weight, gate, ctx.act, ctx.gate_first, ctx.eps)
    return dx, d_weight, None if gate is None else d_gate, None, None, None


_INPUTS = "Tensor x, Tensor weight, Tensor? gate, int act, bool gate_first, float eps"
_forward = define(
    f"rms_norm({_INPUTS}) -> Tensor",
    _run,
    lambda x, weight, gate, act, gate_first, eps: x.new_empty(x.shape),
    backward=_differentiate,
    save=_save,
)
_backward = define(
    f"rms_norm_backward(Tensor dy, {_INPUTS}) -> (Tensor, Tensor, Tensor)", _run_backward, _shapes_of_backward
)
