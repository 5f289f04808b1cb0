"""gated_delta on the native kernels: in chunks or token by token, with one backward, and the step in place."""

from __future__ import annotations

from typing import Any

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
    return _call((q, k, v, beta, log_decay), state, bounds, qk_l2norm, scale, 0)


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
    return _call((q, k, v, beta, log_decay), state, bounds, qk_l2norm, scale, size)


def _call(
    timed: tuple[Any, ...], state: Tensor, bounds: list[int] | None, unit: bool, scale: float, size: int
) -> tuple[Tensor, Tensor]:
    if overwrites() and bounds is None and timed[0].shape[1] == 1:
        return step_(state, *timed, unit, scale), state
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (*timed, state))
    output, final, _ = _forward(*timed, state, boundaries(bounds), unit, scale, size, keep)
    return output, final


def _given(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    state: Tensor,
    bounds: Tensor | None,
    unit: bool,
    scale: float,
) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
    """What every kernel gets first, and the tensors whose addresses are in it, which must live as long."""
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
    sizes = (torch.get_num_threads(), address(bounds), len(state), tokens, key_heads, heads, keys, values)
    qk = (q.data_ptr(), q_row, k.data_ptr(), k_row)
    others = (v.data_ptr(), v_row, beta.data_ptr(), beta_row, address(decay), decay_row)
    return (*sizes, fading, unit, scale, *qk, *others), (q, k, v, beta, decay)


def _run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *inputs, size, keep = arguments
    given, held = _given(*inputs)
    q, state = inputs[0], inputs[5].contiguous()
    output, final, kept = _shapes(*arguments)
    if size:
        untouched(output, kept)
    kernel("gated_delta_forward", q.dtype)(
        given,
        chunk_length(size, CHUNK, q.shape[3]) if size else 0,
        *(state.data_ptr(), output.data_ptr(), final.data_ptr(), kept.data_ptr() if keep else 0),
    )
    del held
    return output, final, kept


def _shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, v, _, _, state, _, _, _, _, keep = arguments
    if not keep:
        return alike(v), alike(state), nothing(v)
    segments = v.shape[0] * v.shape[1] // SEGMENT + state.shape[0]
    return alike(v), alike(state), state.new_empty(segments, *state.shape[1:])


def _run_backward(d_output: Tensor, d_final: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *inputs, size = arguments
    given, held = _given(*inputs)
    q = inputs[0]
    d_final, (d_rows, d_row) = d_final.contiguous(), rows(d_output)
    found = _shapes_of_backward(d_output, d_final, kept, *arguments)
    untouched(*found)
    kernel("gated_delta_backward", q.dtype)(
        given,
        chunk_length(size or CHUNK, CHUNK, q.shape[3]),
        *(address(kept), address(d_rows), d_row, address(d_final), *(address(x) for x in found)),
    )
    del held
    return found


def _shapes_of_backward(d_output: Tensor, d_final: Tensor, kept: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    return tuple(nothing(d_output) if t is None else alike(t) for t in arguments[:6])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, ctx.unit, ctx.scale, ctx.size, _ = inputs
    ctx.set_materialize_grads(False)  # nothing is made for the kept memories
    ctx.save_for_backward(*tensors, output[2])


def _differentiate(ctx: Any, d_output: Tensor | None, d_final: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
    *inputs, kept = ctx.saved_tensors
    options = (ctx.unit, ctx.scale, ctx.size)
    if len(kept) == 0:  # nobody had said that a gradient would be asked for
        kept = _forward(*inputs, *options, True)[2]
    d_output = torch.zeros_like(inputs[2]) if d_output is None else d_output
    d_final = torch.zeros_like(inputs[5]) if d_final is None else d_final
    gradients = _backward(d_output, d_final, kept, *inputs, *options)
    asked = (None if t is None else gradient for gradient, t in zip(gradients, inputs[:6], strict=True))
    return (*asked, None, None, None, None, None)


_TIMED = "Tensor q, Tensor k, Tensor v, Tensor beta, Tensor? log_decay"
_INPUTS = f"{_TIMED}, Tensor state, Tensor? bounds, bool unit, float scale"
_forward = define(
    f"gated_delta({_INPUTS}, int size, bool keep) -> (Tensor, Tensor, Tensor)",
    _run,
    _shapes,
    backward=_differentiate,
    save=_save,
)
_backward = define(
    f"gated_delta_backward(Tensor d_output, Tensor d_final, Tensor kept, {_INPUTS}, int size)"
    f" -> ({', '.join(['Tensor'] * 6)})",
    _run_backward,
    _shapes_of_backward,
)


def _run_step(state: Tensor, *token: Any) -> Tensor:
    whole("gated_delta_step_", state)
    *timed, unit, scale = token
    inputs: list[Any] = [*timed, state, None, unit, scale]
    given, held = _given(*inputs)
    output, place = alike(timed[2]), state.data_ptr()
    kernel("gated_delta_forward", state.dtype)(given, 0, place, output.data_ptr(), place, 0)
    del held
    return output


#: One token [B, 1, ...] of each row: the state is overwritten by the next one. No gradients.
step_ = define(
    f"gated_delta_step_(Tensor(a!) state, {_TIMED}, bool unit, float scale) -> Tensor",
    _run_step,
    lambda state, q, k, v, beta, log_decay, unit, scale: alike(v),
)
