"""short_conv: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from ...errors import InputError, ShapeError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..packing import check_cu_seqlens
from .cpu import refuses as too_wide

__all__ = ["TABLE", "short_conv"]

ACTIVATIONS = (None, "silu")

TABLE = Table(
    "short_conv",
    (
        Row("cpu", "parallel", "lavagna.ops.conv.cpu:convolve", too_wide, packs=True),
        Row("torch", "parallel", "lavagna.ops.conv.parallel:convolve", packs=True),
        Row("reference", "recurrent", "lavagna.ops.conv.reference:short_conv"),
    ),
)


@TABLE.remembers
def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    state: Tensor | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
) -> Result:
    """Convolve each channel with the last W tokens.

        y_t = act(bias + Σ_w weight[:, w] · x_{t−W+1+w}),  x before the start = state (zeros)

    Args:
        x: [B, T, D], floating.
        weight: [D, W], the last column meets the current token. W ≥ 1.
        bias: [D].
        activation: None or "silu", applied to the sum.
        state: [B, W−1, D], the inputs before the first token, oldest first; one per packed sequence.
        return_state: also return the last W−1 inputs.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch.

    Returns:
        output [B, T, D] in x's dtype, and the state [B, W−1, D] (float32, or float64 when an input is) or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: unknown activation, or boundaries that are none.
        BackendError: the named form or implementation cannot run.

    Numerics:
        Sums in float32 (float64 when an input is), whatever x's dtype.

    Source:
        The causal convolution of H3 (Fu et al. 2023) and Mamba (Gu & Dao 2023, section 3.4). Mamba's own
        kernels put channels before time; here, as everywhere in Lavagna, time is second.
    """
    dims = Dims("short_conv")
    dims.bind("x", x, "B T D")
    dims.bind("weight", weight, "D W")
    if bias is not None:
        dims.bind("bias", bias, "D")
    if activation not in ACTIVATIONS:
        raise InputError(f"short_conv: activation must be None or 'silu', got {activation!r}")
    dtype = common_dtype("short_conv", x=x, weight=weight, bias=bias, state=state)
    bounds = None if cu_seqlens is None else check_cu_seqlens("short_conv", cu_seqlens, dims["B"], dims["T"])
    rows = dims["B"] if bounds is None else len(bounds) - 1
    if dims["W"] < 1:
        raise ShapeError("short_conv: weight must have shape [D, W] with W of at least 1, got W=0")
    if state is None:
        state = x.new_zeros(rows, dims["W"] - 1, dims["D"], dtype=dtype)
    else:
        Dims("short_conv", D=dims["D"]).bind("state", state, f"{rows} {dims['W'] - 1} D")
        state = state.to(dtype)
    call = Call({"x": x}, {"weight": weight, "bias": bias}, {"activation": activation}, state, bounds)
    return TABLE.run(call, form=form, impl=impl, dtype=x.dtype, return_state=return_state)
