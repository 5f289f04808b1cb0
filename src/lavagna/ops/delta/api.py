"""gated_delta: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from ...errors import ShapeError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..options import check_count
from ..packing import check_cu_seqlens

__all__ = ["TABLE", "gated_delta"]

TABLE = Table(
    "gated_delta",
    (
        Row("cpu", "recurrent", "lavagna.ops.delta.cpu:recurrent", packs=True),
        Row("cpu", "chunk", "lavagna.ops.delta.cpu:chunk", packs=True),
        Row("torch", "recurrent", "lavagna.ops.delta.recurrent:recurrent"),
        Row("torch", "chunk", "lavagna.ops.delta.chunk:chunk"),
        Row("reference", "recurrent", "lavagna.ops.delta.reference:gated_delta"),
    ),
)


@TABLE.remembers
def gated_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None = None,
    *,
    qk_l2norm: bool = False,
    scale: float | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Result:
    """Fade a memory, correct what it holds under each key, and read it.

        S ← Diag(exp(log_decay_t)) S_{t−1}
        S_t = S + β_t k_t (v_t − Sᵀ k_t)ᵀ
        o_t = scale · S_tᵀ q_t

    Args:
        q, k: [B, T, H, K], floating. |β|·‖k‖² ≤ 2 keeps the memory from growing (‖k‖ = 1 and β ≤ 2, say);
            not checked, since the recurrence means something without it.
        v: [B, T, HV, V], HV a multiple of H; value head h has query and key head h // (HV/H).
        beta: [B, T, HV], the write strength: 0 keeps, 1 replaces what k holds, 2 reflects it. Any finite value.
        log_decay: ≤ 0, natural logarithm, per token, down to −1e4 and beyond; not checked. One a head, constant
            [HV] or [B, T, HV]; one a key channel [B, T, HV, K]; or None, no decay.
        qk_l2norm: divide q and k by sqrt(Σx² + 1e-6) first.
        scale: of the output; None means K^-0.5.
        state: [B, HV, K, V], S before the first token; one per packed sequence.
        return_state: also return S after the last token.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch.
        chunk_size: at most so many tokens a chunk in the chunk form, a power of two; None lets it choose.

    Returns:
        output [B, T, HV, V] in q's dtype, and the state [B, HV, K, V] (float32, or float64 when an input is)
        or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: chunk_size or the boundaries are none.
        BackendError: the named form or implementation cannot run.

    Numerics:
        float32 inside (float64 when an input is), whatever the dtypes. A decay over a range is made of
        that range's own terms; no positive number is exponentiated. README.md has the chunk form.
        torch.set_float32_matmul_precision("medium") lets impl="cpu" make the products of a chunk of bfloat16 numbers.

    Source:
        The delta rule in chunks: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over
        Sequence Length". Gated DeltaNet: Yang, Kautz & Hatamizadeh 2024, equation 10. One gate a channel: Kimi
        Linear (2025), equation 1. The first two write S as [V, K]; here it is [K, V], gate and erasure on the left.
    """
    dims = Dims("gated_delta")
    dims.bind("q", q, "B T H K")
    dims.bind("k", k, "B T H K")
    dims.bind("v", v, "B T HV V")
    dims.bind("beta", beta, "B T HV")
    if log_decay is not None:
        dims.bind("log_decay", log_decay, "HV", "B T HV", "B T HV K")
        log_decay = log_decay.expand(dims["B"], dims["T"], -1) if log_decay.ndim == 1 else log_decay
    dims.at_least_one("H", "HV", "K", "V")
    if dims["HV"] % dims["H"]:
        raise ShapeError(
            f"gated_delta: v must have a multiple of the H={dims['H']} heads of q and k, got HV={dims['HV']}"
        )
    check_count("gated_delta", "chunk_size", chunk_size, power_of_two=True)
    bounds = None if cu_seqlens is None else check_cu_seqlens("gated_delta", cu_seqlens, dims["B"], dims["T"])
    rows = dims["B"] if bounds is None else len(bounds) - 1
    if state is not None:
        dims.bind("state", state, f"{rows} HV K V")
    given = {"q": q, "k": k, "v": v, "beta": beta, "log_decay": log_decay, "state": state}
    dtype = common_dtype("gated_delta", **given)
    if state is None:
        state = q.new_zeros(rows, dims["HV"], dims["K"], dims["V"], dtype=dtype)
    state = state.to(dtype)
    timed = {"q": q, "k": k, "v": v, "beta": beta}
    fixed: dict[str, Tensor | None] = {}
    if log_decay is None:
        fixed["log_decay"] = None
    else:
        timed["log_decay"] = log_decay
    options = {
        "qk_l2norm": qk_l2norm,
        "scale": dims["K"] ** -0.5 if scale is None else scale,
        "chunk_size": chunk_size,
    }
    call = Call(timed, fixed, options, state, bounds)
    return TABLE.run(call, form=form, impl=impl, dtype=q.dtype, return_state=return_state)
