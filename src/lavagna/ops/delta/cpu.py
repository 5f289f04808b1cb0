"""gated_delta on the native kernels: in chunks or token by token, with one backward, and the step in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import BackendError
from ..chunk_length import chunk_length
from ..library import address, boundaries, define, kernel, rows

__all__ = ["chunk", "recurrent", "step_"]

#: Tokens of a chunk at most, and between two memories kept for the backward pass; both are constants of the kernels.
CHUNK, SEGMENT = 16, 64

#: how the memory fades, by the dimensions of log_decay
_FADING = {3: 1, 4: 2}


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    *,
    qk_l2norm: bool,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] or one per sequence -> o [B, T, HV, V], state."""
    return _call(q, k, v, beta, log_decay, state, bounds, qk_l2norm, scale, 0)


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    *,
    qk_l2norm: bool,
    scale: float,
    chunk_size: int | None,
    state: Tensor,
    bounds: list[int] | None,
) -> tuple[Tensor, Tensor]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] or one per sequence -> o [B, T, HV, V], state."""
    size = min(chunk_size or CHUNK, CHUNK)
    return _call(q, k, v, beta, log_decay, state, bounds, qk_l2norm, scale, size)


def _call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    bounds: list[int] | None,
    unit: bool,
    scale: float,
    size: int,
) -> tuple[Tensor, Tensor]:
    tensors = (q, k, v, beta, log_decay, state)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    output, final, _ = _forward(*tensors, boundaries(bounds), unit, scale, size, keep)
    return output, final


def _common(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    sequences: int,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
) -> tuple[list[Any], list[Tensor]]:
    """What every kernel takes first, and the tensors whose addresses are among it."""
    given = [rows(x) for x in (q, k, v, beta)]
    given.append((q, 0) if log_decay is None else rows(log_decay))
    fading = 0 if log_decay is None else _FADING[log_decay.ndim]
    sizes = (*q.shape[2:3], *v.shape[2:3], q.shape[3], v.shape[3])
    arguments: list[Any] = [torch.get_num_threads(), address(bounds), sequences, q.shape[1], *sizes]
    arguments += [fading, unit, scale]
    for x, row in given:
        arguments += [address(x), row]
    return arguments, [x for x, _ in given]


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
    size: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    state = state.contiguous()
    common, held = _common(q, k, v, beta, log_decay, len(state), bounds, unit, scale)
    output, final, kept = _shapes(q, k, v, beta, log_decay, state, bounds, unit, scale, size, keep)
    kernel("gated_delta_forward", q.dtype)(
        *common,
        chunk_length(size, CHUNK, q.shape[3]) if size else 0,
        *(address(state), address(output), address(final), address(kept) if keep else 0),
    )
    del held
    return output, final, kept


def _shapes(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
    size: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    segments = v.shape[0] * v.shape[1] // SEGMENT + state.shape[0] if keep else 0
    return v.new_empty(v.shape), state.new_empty(state.shape), state.new_empty(segments, *state.shape[1:])


def _run_backward(
    d_output: Tensor,
    d_final: Tensor,
    kept: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
    size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_final, (d_rows, d_row) = d_final.contiguous(), rows(d_output)
    common, held = _common(q, k, v, beta, log_decay, len(d_final), bounds, unit, scale)
    found = _shapes_of_backward(d_output, d_final, kept, q, k, v, beta, log_decay, bounds, unit, scale, size)
    kernel("gated_delta_backward", q.dtype)(
        *common,
        chunk_length(size or CHUNK, CHUNK, q.shape[3]),
        *(address(kept), address(d_rows), d_row, address(d_final), *(address(x) for x in found)),
    )
    del held
    return found


def _shapes_of_backward(
    d_output: Tensor,
    d_final: Tensor,
    kept: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
    size: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    d_log_decay = q.new_empty(0 if log_decay is None else log_decay.shape)
    of_inputs = (q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), beta.new_empty(beta.shape))
    return *of_inputs, d_log_decay, d_final.new_empty(d_final.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, bounds, ctx.unit, ctx.scale, ctx.size, _ = inputs
    ctx.set_materialize_grads(False)  # nothing is made for the kept memories
    ctx.save_for_backward(*tensors, bounds, output[2])


def _differentiate(ctx: Any, d_output: Tensor | None, d_final: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    q, k, v, beta, log_decay, state, bounds, kept = ctx.saved_tensors
    options = (ctx.unit, ctx.scale, ctx.size)
    if len(kept) == 0:  # nobody had said that a gradient would be asked for
        kept = _forward(q, k, v, beta, log_decay, state, bounds, *options, True)[2]
    d_output = torch.zeros_like(v) if d_output is None else d_output
    d_final = torch.zeros_like(state) if d_final is None else d_final
    *of_inputs, d_log_decay, d_state = _backward(d_output, d_final, kept, q, k, v, beta, log_decay, bounds, *options)
    return *of_inputs, None if log_decay is None else d_log_decay, d_state, None, None, None, None, None


_TIMED = "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? log_decay"
_forward = define(
    f"gated_delta({_TIMED}, Tensor state, Tensor? bounds, bool unit, float scale, int size, bool keep)"
    " -> (Tensor, Tensor, Tensor)",
    _run,
    _shapes,
    backward=_differentiate,
    save=_save,
)
_backward = define(
    f"gated_delta_backward(Tensor d_output, Tensor d_final, Tensor kept, {_TIMED}, Tensor? bounds, bool unit,"
    " float scale, int size) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_backward,
    _shapes_of_backward,
)


def _run_step(
    state: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    unit: bool,
    scale: float,
) -> Tensor:
    if not state.is_contiguous():
        raise BackendError("gated_delta_step_ writes on a contiguous state, got strides " + str(state.stride()))
    common, held = _common(q, k, v, beta, log_decay, len(state), None, unit, scale)
    output = v.new_empty(v.shape)
    kernel("gated_delta_forward", q.dtype)(*common, 0, address(state), address(output), address(state), 0)
    del held
    return output


#: One token [B, 1, ...] of each row: the state is overwritten by the next one. No gradients.
step_ = define(
    f"gated_delta_step_(Tensor(a!) state, {_TIMED}, bool unit, float scale) -> Tensor",
    _run_step,
    lambda state, q, k, v, beta, log_decay, unit, scale: v.new_empty(v.shape),
)
