"""diagonal_ssm: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..options import check_count
from ..packing import check_cu_seqlens

__all__ = ["TABLE", "diagonal_ssm"]

TABLE = Table(
    "diagonal_ssm",
    (
        Row("cpu", "recurrent", "lavagna.ops.diagonal.cpu:scan"),
        Row("torch", "recurrent", "lavagna.ops.diagonal.recurrent:scan"),
        Row("cpu", "chunk", "lavagna.ops.diagonal.cpu:scan"),
        Row("torch", "chunk", "lavagna.ops.diagonal.chunk:scan", packs=True),
        Row("torch", "parallel", "lavagna.ops.diagonal.parallel:convolve"),
        Row("reference", "recurrent", "lavagna.ops.diagonal.reference:diagonal_ssm"),
    ),
)


@TABLE.remembers
def diagonal_ssm(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Result:
    """Run S4D: each channel is filtered by N fading oscillations that stay the same at every token.

        h_t = Ā ∘ h_{t−1} + B̄ x_t,  Ā = e^{ΔA},  B̄ = (e^{ΔA} − 1)/A ∘ B
        y_t = 2·Re Σ_n C h_t + D x_t        (complex A: one of each conjugate pair)
        y_t = Σ_n C h_t + D x_t             (real A)

    Args:
        x: [B, T, D], floating.
        dt: [D], the step Δ of each channel, should be ≥ 0 (not checked).
        A: [D, N], complex or real, with real part ≤ 0 (not checked: a positive one makes the state grow); 0 is
            allowed.
        B, C: [D, N]; real if A is, complex or real if A is complex.
        D: [D], the skip.
        state: [B, D, N], h before the first token; one per packed sequence.
        return_state: also return h after the last token.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch.
        chunk_size: tokens per chunk in form "chunk"; None: chosen for speed.

    Returns:
        output [B, T, D] in x's dtype, and the state [B, D, N] (complex where A is; complex64 or float32, double
        when an input is) or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: chunk_size below 1, or boundaries that are none.
        BackendError: the named form or implementation cannot run.

    Numerics:
        Ā, B̄ and powers of Ā in float64 where the device has it, and so is the transform of form "parallel";
        sums over tokens in float32 (float64 when an input is). Exact as A → 0, gradients too.

    Source:
        S4D: Gu, Gupta, Goel & Ré 2022, equations 3 and 6; zero-order hold. The paper keeps one of each
        conjugate pair and doubles the real part, as here; its convolution takes no initial state.
    """
    dims = Dims("diagonal_ssm")
    dims.bind("x", x, "B T D")
    dims.bind("dt", dt, "D")
    for name, parameter in (("A", A), ("B", B), ("C", C)):
        dims.bind(name, parameter, "D N")
    if D is not None:
        dims.bind("D", D, "D")
    complex_names = ("A", "B", "C", "state") if A.is_complex() else ()  # beside a real A all is real
    dtype = common_dtype("diagonal_ssm", complex_names, x=x, dt=dt, A=A, B=B, C=C, D=D, state=state)
    check_count("diagonal_ssm", "chunk_size", chunk_size)
    dims.at_least_one("D", "N")
    bounds = None if cu_seqlens is None else check_cu_seqlens("diagonal_ssm", cu_seqlens, dims["B"], dims["T"])
    rows = dims["B"] if bounds is None else len(bounds) - 1
    if A.is_complex():
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        B, C = B.to(A.dtype), C.to(A.dtype)
    if state is None:
        state = x.new_zeros(rows, dims["D"], dims["N"], dtype=dtype)
    else:
        dims.bind("state", state, f"{rows} D N")
        state = state.to(dtype)
    timed = {"x": x}
    if bounds is not None:  # no token leaves the state as it is, so padding has to be known
        timed["real"] = x.new_ones(x.shape[:2], dtype=torch.bool)
    call = Call(
        timed,
        {"dt": dt, "A": A, "B": B, "C": C, "D": D},
        {"keep": return_state, "chunk_size": chunk_size},
        state,
        bounds,
        {"real": False},
    )
    return TABLE.run(call, form=form, impl=impl, dtype=x.dtype, return_state=return_state)
