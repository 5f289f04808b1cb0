"""gated_delta on the native kernels: in chunks or token by token, with one backward, and the step in place."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..chunk_length import chunk_length
from ..library import address, alike, boundaries, define, kernel, nothing, rows, untouched, whole
from ..overwriting import overwrites

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
    if overwrites() and bounds is None and q.shape[1] == 1:
        return step_(state, q, k, v, beta, log_decay, unit, scale), state
    tensors = (q, k, v, beta, log_decay, state)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    output, final, _ = _forward(*tensors, boundaries(bounds), unit, scale, size, keep)
    return output, final


class _Inputs(NamedTuple):
    """What every kernel takes first. The tensors, some of them copies, are held as long as their addresses are used."""

    arguments: tuple[Any, ...]
    held: tuple[Tensor | None, ...]


def _inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    sequences: int,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
) -> _Inputs:
    _, tokens, key_heads, keys = q.shape
    _, _, heads, values = v.shape
    fading = 0 if log_decay is None else _FADING[log_decay.ndim]
    q_row = k_row = key_heads * keys
    v_row, beta_row, decay_row, decay = heads * values, heads, heads * keys if fading == 2 else heads, log_decay
    # A step passes here each time, and its tensors are mostly whole: is_contiguous costs a tenth of rows.
    if not q.is_contiguous():
        q, q_row = rows(q)
    if not k.is_contiguous():
        k, k_row = rows(k)
    if not v.is_contiguous():
        v, v_row = rows(v)
    if not beta.is_contiguous():
        beta, beta_row = rows(beta)
    if decay is not None and not decay.is_contiguous():
        decay, decay_row = rows(decay)
    sizes = (torch.get_num_threads(), address(bounds), sequences, tokens, key_heads, heads, keys, values)
    qk = (q.data_ptr(), q_row, k.data_ptr(), k_row)
    others = (v.data_ptr(), v_row, beta.data_ptr(), beta_row, address(decay), decay_row)
    return _Inputs((*sizes, fading, unit, scale, *qk, *others), (q, k, v, beta, decay))


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
    inputs = _inputs(q, k, v, beta, log_decay, len(state), bounds, unit, scale)
    output, final, kept = _shapes(q, k, v, beta, log_decay, state, bounds, unit, scale, size, keep)
    untouched(output, kept)
    kernel("gated_delta_forward", q.dtype)(
        *inputs.arguments,
        chunk_length(size, CHUNK, q.shape[3]) if size else 0,
        *(state.data_ptr(), output.data_ptr(), final.data_ptr(), kept.data_ptr() if keep else 0),
    )
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
    if not keep:
        return alike(v), alike(state), nothing(v)
    segments = v.shape[0] * v.shape[1] // SEGMENT + state.shape[0]
    return alike(v), alike(state), state.new_empty(segments, *state.shape[1:])


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
    inputs = _inputs(q, k, v, beta, log_decay, len(d_final), bounds, unit, scale)
    found = _shapes_of_backward(d_output, d_final, kept, q, k, v, beta, log_decay, bounds, unit, scale, size)
    untouched(*found)
    kernel("gated_delta_backward", q.dtype)(
        *inputs.arguments,
        chunk_length(size or CHUNK, CHUNK, q.shape[3]),
        *(address(kept), address(d_rows), d_row, address(d_final), *(address(x) for x in found)),
    )
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
    d_log_decay = nothing(q) if log_decay is None else alike(log_decay)
    return alike(q), alike(k), alike(v), alike(beta), d_log_decay, alike(d_final)


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
    whole("gated_delta_step_", state)
    inputs = _inputs(q, k, v, beta, log_decay, len(state), None, unit, scale)
    output = alike(v)
    place = state.data_ptr()
    kernel("gated_delta_forward", q.dtype)(*inputs.arguments, 0, place, output.data_ptr(), place, 0)
    return output


#: One token [B, 1, ...] of each row: the state is overwritten by the next one. No gradients.
step_ = define(
    f"gated_delta_step_(Tensor(a!) state, {_TIMED}, bool unit, float scale) -> Tensor",
    _run_step,
    lambda state, q, k, v, beta, log_decay, unit, scale: alike(v),
)
