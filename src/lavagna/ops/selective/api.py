"""selective_scan: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from ...errors import InputError, ShapeError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..options import check_count
from ..packing import check_cu_seqlens

__all__ = ["TABLE", "selective_scan"]

TABLE = Table(
    "selective_scan",
    (
        Row("cpu", "recurrent", "lavagna.ops.selective.cpu:scan", packs=True),
        Row("torch", "recurrent", "lavagna.ops.selective.portable:recurrent", packs=True),
        Row("cpu", "chunk", "lavagna.ops.selective.cpu:scan", packs=True),
        Row("torch", "chunk", "lavagna.ops.selective.portable:chunk", packs=True),
        Row("reference", "recurrent", "lavagna.ops.selective.reference:selective_scan"),
    ),
)


@TABLE.remembers
def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    *,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Result:
    """Run S6: N fading sums for each channel, whose fading, writing and reading the input decides.

        Δ_t = clamp(softplus(dt_t + dt_bias), dt_limit)         (each part where it is asked for)
        h_t = exp(Δ_t A) ∘ h_{t−1} + Δ_t B_t x_t
        y_t = (Σ_n C_t h_t + D x_t) · silu(z_t)

    Args:
        x: [B, T, D], floating.
        dt: [B, T, D]; the Δ made from it should be ≥ 0 (not checked): a negative one makes decays grow.
        A: [D, N], ≤ 0 (the value itself, no logarithm), not checked. Δ·A may reach −1e4 and beyond.
        B, C: [B, T, N], or [B, T, G, N], where channel d has group d // (D/G), or, constant over time, [D, N].
            The number of dimensions tells which.
        D: [D], the skip.
        z: [B, T, D], the gate.
        dt_bias: [D].
        dt_softplus: take softplus of dt + dt_bias.
        dt_limit: (low, high) with 0 ≤ low ≤ high; Δ is clamped to it last.
        state: [B, D, N], h before the first token; one per packed sequence.
        return_state: also return h after the last token.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch.
        chunk_size: tokens a chunk in the chunk form on torch; T/chunk_size states are kept for the backward pass. The
            native kernels keep one every 16 tokens.

    Returns:
        output [B, T, D] in x's dtype, and the state [B, D, N] (float32, or float64 when an input is) or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: dt_limit, chunk_size or cu_seqlens has a value that cannot be.
        BackendError: the named form or implementation cannot run.

    Numerics:
        float32 inside (float64 when an input is), whatever the dtypes. Decays are multiplied one after the
        other, so a decay over a range holds that range's own terms alone. Beyond one
        chunk the chunk form makes no [B, T, D, N] tensor, backward included; it cannot be differentiated
        twice, the recurrent form can.

    Source:
        Mamba, Gu & Dao 2023, algorithm 2, with B̄ = Δ B as in its code (equation 4 has the exact
        zero-order hold). The limits come from Mamba-2 (Dao & Gu 2024). Mamba's own kernels put channels
        before time; here, as everywhere in Lavagna, time is second.
    """
    dims = Dims("selective_scan")
    dims.bind("x", x, "B T D")
    dims.bind("dt", dt, "B T D")
    dims.bind("A", A, "D N")
    dims.at_least_one("D", "N")
    for name, coefficient in (("B", B), ("C", C)):
        pattern = dims.bind(name, coefficient, "B T N", "B T G N", "D N")
        if "G" in pattern and (dims["G"] < 1 or dims["D"] % dims["G"]):
            raise ShapeError(
                f"selective_scan: D={dims['D']} channels must be a multiple of the groups of {name}, got G={dims['G']}"
            )
    for name, vector in (("D", D), ("dt_bias", dt_bias)):
        if vector is not None:
            dims.bind(name, vector, "D")
    if z is not None:
        dims.bind("z", z, "B T D")
    if dt_limit is not None:
        dt_limit = _limits(dt_limit)
    check_count("selective_scan", "chunk_size", chunk_size)
    given = {"x": x, "dt": dt, "A": A, "B": B, "C": C, "D": D, "z": z, "dt_bias": dt_bias, "state": state}
    dtype = common_dtype("selective_scan", **given)
    bounds = None if cu_seqlens is None else check_cu_seqlens("selective_scan", cu_seqlens, dims["B"], dims["T"])
    rows = dims["B"] if bounds is None else len(bounds) - 1
    if state is None:
        state = x.new_zeros(rows, dims["D"], dims["N"], dtype=dtype)
    else:
        dims.bind("state", state, f"{rows} D N")
        state = state.to(dtype)
    timed: dict[str, Tensor] = {"x": x, "dt": dt}
    fixed: dict[str, Tensor | None] = {"A": A, "D": D, "dt_bias": dt_bias}
    for name, coefficient in (("B", B), ("C", C)):
        (fixed if coefficient.ndim == 2 else timed)[name] = coefficient
    if z is None:
        fixed["z"] = None
    else:
        timed["z"] = z
    options = {"dt_softplus": dt_softplus, "dt_limit": dt_limit, "chunk_size": chunk_size}
    call = Call(timed, fixed, options, state, bounds)
    return TABLE.run(call, form=form, impl=impl, dtype=x.dtype, return_state=return_state)


def _limits(dt_limit: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = map(float, dt_limit)
    except (TypeError, ValueError):
        low = high = float("nan")
    if not 0 <= low <= high:
        raise InputError(f"selective_scan: dt_limit must be (low, high) with 0 <= low <= high, got {dt_limit!r}")
    return low, high
