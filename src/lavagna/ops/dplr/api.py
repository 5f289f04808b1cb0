"""generalized_delta: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from ...errors import ShapeError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..options import check_count
from ..packing import check_cu_seqlens

__all__ = ["TABLE", "generalized_delta"]

TABLE = Table(
    "generalized_delta",
    (
        Row("cpu", "recurrent", "lavagna.ops.dplr.cpu:recurrent", packs=True),
        Row("cpu", "chunk", "lavagna.ops.dplr.cpu:chunk", packs=True),
        Row("torch", "recurrent", "lavagna.ops.dplr.recurrent:recurrent"),
        Row("torch", "chunk", "lavagna.ops.dplr.chunk:chunk"),
        Row("reference", "recurrent", "lavagna.ops.dplr.reference:generalized_delta"),
    ),
)


@TABLE.remembers
def generalized_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    log_decay: Tensor,
    *,
    scale: float | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Result:
    """Carry a memory on by a diagonal plus a matrix of rank one, write to it, and read it.

        S_t = (Diag(exp(log_decay_t)) + b_t a_tᵀ) S_{t−1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t

    a reads the memory as it was before it fades.

    Args:
        q, k: [B, T, H, K], floating.
        v: [B, T, H, V].
        a, b: [B, T, H, K]. RWKV-7 has a = −κ and b = κ ∘ η with ‖κ‖ = 1 and 0 ≤ η ≤ 1; whether the memory stays
            bounded is the caller's care, as is every other choice of a and b.
        log_decay: [B, T, H, K], ≤ 0, natural logarithm, down to −1e4 and beyond; not checked.
        scale: of the output; None means K^-0.5.
        state: [B, H, K, V], S before the first token; one per packed sequence.
        return_state: also return S after the last token.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch.
        chunk_size: at most so many tokens a chunk in the chunk form, a power of two; None lets it choose.

    Returns:
        output [B, T, H, V] in q's dtype, and the state [B, H, K, V] (float32, or float64 when an input is) or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: chunk_size or the boundaries are none.
        BackendError: the named form or implementation cannot run.

    Numerics:
        float32 inside (float64 when an input is), whatever the dtypes. A decay over a range is made of
        that range's own terms; no positive number is exponentiated.

    Source:
        RWKV-7 (Peng et al. 2025, the evolution of the weighted key value state), which writes S as [V, K]; here it
        is [K, V] and the transition stands on the left.
    """
    dims = Dims("generalized_delta")
    dims.bind("q", q, "B T H K")
    dims.bind("k", k, "B T H K")
    dims.bind("v", v, "B T H V")
    dims.bind("a", a, "B T H K")
    dims.bind("b", b, "B T H K")
    dims.bind("log_decay", log_decay, "B T H K")
    check_count("generalized_delta", "chunk_size", chunk_size, power_of_two=True)
    dims.at_least_one("H", "K", "V")
    bounds = None if cu_seqlens is None else check_cu_seqlens("generalized_delta", cu_seqlens, dims["B"], dims["T"])
    rows = dims["B"] if bounds is None else len(bounds) - 1
    if state is not None:
        dims.bind("state", state, f"{rows} H K V")
    timed = {"q": q, "k": k, "v": v, "a": a, "b": b, "log_decay": log_decay}
    given = {**timed, "state": state}
    for name, tensor in given.items():
        if tensor is not None and tensor.is_complex():
            raise ShapeError(f"generalized_delta: {name} must be real, got {tensor.dtype}")
    dtype = common_dtype("generalized_delta", **given)
    if state is None:
        state = q.new_zeros(rows, dims["H"], dims["K"], dims["V"], dtype=dtype)
    state = state.to(dtype)
    options = {"scale": dims["K"] ** -0.5 if scale is None else scale, "chunk_size": chunk_size}
    call = Call(timed, {}, options, state, bounds)
    return TABLE.run(call, form=form, impl=impl, dtype=q.dtype, return_state=return_state)
