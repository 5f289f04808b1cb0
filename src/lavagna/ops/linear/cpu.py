"""gated_linear on the native kernels: chunks or token by token, one backward for both, and the step in place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..library import address, alike, boundaries, contiguous, define, kernel, nothing, rows, untouched, whole
from ..overwriting import overwrites
from .normalizer import EPSILON, LinearState

__all__ = ["chunk", "recurrent", "step_"]

#: tokens of a chunk of the forward pass, if nobody says otherwise; all chunks have 16, 32 or 64
CHUNK, LONGEST = 16, 64
#: what fades the state, by the dimensions of log_decay
_GATES = {1: 1, 3: 2, 4: 3}
#: columns of a value that are worth a thread's attention
STRIP = 32


def chunk(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    *,
    normalizer: bool,
    scale: float,
    chunk_size: int | None,
    state: Any,
    bounds: list[int] | None,
) -> tuple[Tensor, Any]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] or (S, z) -> o [B, T, HV, V], state."""
    size = CHUNK if chunk_size is None else _power_of_two(chunk_size)
    return _call((q, k, v, log_decay, bonus), state, normalizer, bounds, scale, size)


def recurrent(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    *,
    normalizer: bool,
    scale: float,
    chunk_size: int | None,
    state: Any,
    bounds: list[int] | None,
) -> tuple[Tensor, Any]:
    """q, k [B, T, H, K], v [B, T, HV, V], state [B, HV, K, V] or (S, z) -> o [B, T, HV, V], state."""
    return _call((q, k, v, log_decay, bonus), state, normalizer, bounds, scale, 0)


def _call(
    timed: tuple[Any, ...], state: Any, normalizer: bool, bounds: list[int] | None, scale: float, size: int
) -> tuple[Tensor, Any]:
    S, z = state if normalizer else (state, None)
    inputs = (*timed, S, z)
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if size or keep:
        o, S, z, *_ = _forward(*inputs, boundaries(bounds), scale, size, keep)
    elif overwrites() and bounds is None and timed[0].shape[1] == 1:
        return step_(S, z, *timed, scale), state
    else:
        o, S, z = _steps(*inputs, boundaries(bounds), scale)
    return o, LinearState(S, z) if normalizer else S


def _given(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None,
    bonus: Tensor | None,
    S: Tensor,
    z: Tensor | None,
    bounds: Tensor | None,
    scale: float,
) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
    """What every kernel gets first, and the tensors whose addresses are in it, which must live as long."""
    B, T, H, K = q.shape
    _, _, HV, V = v.shape
    q_row = k_row = H * K
    v_row = HV * V
    gate = decay_row = decay_address = bonus_address = 0
    # Not through `rows` where all is contiguous: a step takes the kernel less time than these lines.
    if not (q.is_contiguous() and k.is_contiguous() and v.is_contiguous()):
        (q, q_row), (k, k_row), (v, v_row) = rows(q), rows(k), rows(v)
    if log_decay is not None:
        gate = _GATES[log_decay.ndim]
        if gate == 1:
            log_decay = log_decay.contiguous()
        elif log_decay.is_contiguous():
            decay_row = HV if gate == 2 else HV * K
        else:
            log_decay, decay_row = rows(log_decay)
        decay_address = log_decay.data_ptr()
    if bonus is not None:
        bonus = bonus.contiguous()
        bonus_address = bonus.data_ptr()
    given = (
        torch.get_num_threads(),
        0 if bounds is None else bounds.data_ptr(),
        *(S.shape[0], T, B * T, H, HV // H, K, V, gate, z is not None, scale, EPSILON),
        *(q.data_ptr(), q_row, k.data_ptr(), k_row, v.data_ptr(), v_row, decay_address, decay_row, bonus_address),
    )
    return given, (q, k, v, log_decay, bonus, bounds)


def _share(tasks: int, pieces: int) -> int:
    """In how many parts each of so many tasks is cut, which has at most so many pieces.

    No more than the threads need: each part does again what its pieces could share.
    """
    threads = torch.get_num_threads()

    def idle(parts: int) -> float:
        rounds = -(-tasks * parts // threads)
        return rounds * threads / max(tasks * parts, 1)

    return min(range(1, min(pieces, threads) + 1), key=lambda parts: (idle(parts) > 1.1, round(idle(parts), 3), parts))


def _power_of_two(tokens: int) -> int:
    """The length of a chunk near this one."""
    return 1 << (min(max(tokens, CHUNK), LONGEST).bit_length() - 1)


def _keep(K: int) -> int:
    """Tokens of a chunk of the backward pass, and so between the states that the forward pass keeps for it.

    K/2, so that the states take the memory of v twice. It is longer than a chunk of the forward pass: less to keep
    is worth more products of pairs, and it has more products that do not lengthen with the chunk.
    """
    return _power_of_two(K // 2)


def _run(*arguments: Any) -> tuple[Tensor, ...]:
    *inputs, size, keep = arguments
    given, held = _given(*inputs)
    q, _, v, _, _, S, z, _, _ = inputs
    S, z = S.contiguous(), contiguous(z)
    results = _shapes(*arguments)
    heads, ratio, V = q.shape[2], v.shape[2] // q.shape[2], v.shape[3]
    strip, keep_every = V, _keep(q.shape[3])
    if size and z is None and S.shape[0] * v.shape[2] < torch.get_num_threads() and V > STRIP:
        strip = STRIP
    parts = _share(S.shape[0] * heads, ratio * -(-V // strip)) if size else 1
    untouched(results[0], results[4])
    o, final_S, final_z, weight, kept = map(address, results)
    kernel("gated_linear_forward", q.dtype)(
        *(given, min(size, keep_every), keep_every, parts, strip),
        *(address(S), address(z), o, final_S, final_z, weight, kept if keep else 0),
    )
    del held
    return results


def _shapes(*arguments: Any) -> tuple[Tensor, ...]:
    q, _, v, _, _, S, z, bounds, _, _, keep = arguments
    final_z = nothing(S) if z is None else alike(z)
    weight = nothing(S) if z is None else S.new_empty(v.shape[:3])
    if not keep:
        return alike(v), alike(S), final_z, weight, nothing(S)
    tokens = _keep(q.shape[3])
    slots = S.shape[0] * -(-v.shape[1] // tokens) if bounds is None else v.shape[1] // tokens + S.shape[0]
    K, V = S.shape[2:]
    kept = S.new_empty(slots, S.shape[1], V + (z is not None), K + -K % 16)
    return alike(v), alike(S), final_z, weight, kept


def _run_backward(
    d_o: Tensor, d_S: Tensor | None, d_z: Tensor | None, o: Tensor | None, weight: Tensor, kept: Tensor, *inputs: Any
) -> tuple[Tensor, ...]:
    given, held = _given(*inputs)
    q, _, v, log_decay, _, S, _, _, _ = inputs
    sequences = S.shape[0]
    (d_rows, d_row), d_S, d_z = rows(d_o), contiguous(d_S), contiguous(d_z)
    parts = _share(sequences * q.shape[2], v.shape[2] // q.shape[2])
    *shares, dv, d_log_decay, d_bonus, d_S_before, d_z_before = _shapes_of_backward(
        d_o, d_S, d_z, o, weight, kept, *inputs
    )
    dq, dk = (x.new_empty(parts, *x.shape) for x in shares)
    untouched(dq, dk, dv, d_log_decay)
    constant = log_decay is not None and log_decay.ndim == 1
    if constant:
        d_log_decay = d_log_decay.new_empty(sequences, *d_log_decay.shape)
    d_bonus = d_bonus.new_empty(sequences, *d_bonus.shape)
    kernel("gated_linear_backward", q.dtype)(
        *(given, _keep(q.shape[3]), parts, address(o), address(weight), address(kept)),
        *(address(d_rows), d_row, address(d_S), address(d_z), address(dq), address(dk), address(dv)),
        *(address(d_log_decay), address(d_bonus), address(d_S_before), address(d_z_before)),
    )
    del held

    def total(shares: Tensor) -> Tensor:  # in a fixed order: the same number of threads gives the same bits
        return shares[0] if len(shares) == 1 else shares.sum(0)

    d_log_decay = total(d_log_decay) if constant else d_log_decay
    return total(dq), total(dk), dv, d_log_decay, total(d_bonus), d_S_before, d_z_before


def _shapes_of_backward(*arguments: Any) -> tuple[Tensor, ...]:
    inputs = arguments[6:13]
    return tuple(nothing(inputs[0]) if t is None else alike(t) for t in inputs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.scale, ctx.size, _ = inputs
    o, _, _, weight, kept = output
    ctx.mark_non_differentiable(weight, kept)
    ctx.set_materialize_grads(False)
    normalizer = tensors[6] is not None
    ctx.save_for_backward(*tensors, o if normalizer else None, weight, kept)  # nothing else is made of the output


def _differentiate(
    ctx: Any, d_o: Tensor | None, d_S: Tensor | None, d_z: Tensor | None, *_: None
) -> tuple[Tensor | None, ...]:
    *inputs, o, weight, kept = ctx.saved_tensors
    if kept.shape[0] == 0:  # nobody had said that a gradient would be asked for
        kept = _forward(*inputs, ctx.scale, ctx.size, True)[4]
    if d_o is None:
        d_o = torch.zeros_like(inputs[2])
    gradients = _backward(d_o, d_S, d_z, o, weight, kept, *inputs, ctx.scale)
    asked = (None if t is None else gradient for gradient, t in zip(gradients, inputs[:7], strict=True))
    return (*asked, None, None, None, None)


_TIMED = "Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? bonus"
_INPUTS = f"{_TIMED}, Tensor S, Tensor? z, Tensor? bounds, float scale"
_forward = define(
    f"gated_linear({_INPUTS}, int size, bool keep) -> ({', '.join(['Tensor'] * 5)})",
    _run,
    _shapes,
    backward=_differentiate,
    save=_save,
)
_backward = define(
    f"gated_linear_backward(Tensor d_o, Tensor? d_S, Tensor? d_z, Tensor? o, Tensor weight, Tensor kept, {_INPUTS})"
    f" -> ({', '.join(['Tensor'] * 7)})",
    _run_backward,
    _shapes_of_backward,
)


def _read(inputs: tuple[Any, ...], final_S: Tensor, final_z: Tensor | None) -> Tensor:
    """Read the tokens one by one into the final state, which may be the state itself if there is one token."""
    given, held = _given(*inputs)
    S, z = inputs[5].contiguous(), contiguous(inputs[6])
    o = alike(inputs[2])
    states = (S.data_ptr(), address(z), o.data_ptr(), final_S.data_ptr(), address(final_z))
    kernel("gated_linear_forward", S.dtype)(given, 0, 1, 1, 1, *states, 0, 0)
    del held
    return o


def _run_steps(*inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    S, z = inputs[5:7]
    final_S, final_z = alike(S), nothing(S) if z is None else alike(z)
    return _read(inputs, final_S, None if z is None else final_z), final_S, final_z


def _shapes_of_steps(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, _, v, _, _, S, z, _, _ = inputs
    return alike(v), alike(S), nothing(S) if z is None else alike(z)


#: the recurrent form where nothing is asked for but the result: to make the tensors of the other operator takes longer
#: than to read a token
_steps = define(f"gated_linear_steps({_INPUTS}) -> (Tensor, Tensor, Tensor)", _run_steps, _shapes_of_steps)


def _run_step(S: Tensor, z: Tensor | None, *token: Any) -> Tensor:
    whole("gated_linear_step_", S, z)
    *timed, scale = token
    return _read((*timed, S, z, None, scale), S, z)


#: One token, whose state [B, HV, K, V] (and z [B, HV, K], with the normaliser) changes in place; both contiguous.
step_ = define(
    f"gated_linear_step_(Tensor(a!) S, Tensor(b!)? z, {_TIMED}, float scale) -> Tensor",
    _run_step,
    lambda S, z, q, k, v, log_decay, bonus, scale: alike(v),
)
