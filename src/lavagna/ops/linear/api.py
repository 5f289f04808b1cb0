"""gated_linear: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from ...errors import ShapeError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype
from ..options import check_count
from ..packing import check_cu_seqlens
from .normalizer import LinearState
from .parallel import refuses as too_many_pairs

__all__ = ["TABLE", "LinearState", "gated_linear"]

TABLE = Table(
    "gated_linear",
    (
        Row("cpu", "recurrent", "lavagna.ops.linear.cpu:recurrent", packs=True),
        Row("torch", "recurrent", "lavagna.ops.linear.recurrent:gated_linear"),
        Row("cpu", "chunk", "lavagna.ops.linear.cpu:chunk", packs=True),
        Row("torch", "chunk", "lavagna.ops.linear.chunk:gated_linear"),
        Row("torch", "parallel", "lavagna.ops.linear.parallel:gated_linear", too_many_pairs),
        Row("reference", "recurrent", "lavagna.ops.linear.reference:gated_linear"),
    ),
)

#: a token that writes nothing (k = v = 0) and does not decay changes no state
FILLS = {"log_decay": 0.0}


@TABLE.remembers
def gated_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor | None = None,
    bonus: Tensor | None = None,
    *,
    normalizer: bool = False,
    scale: float | None = None,
    state: Tensor | LinearState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    form: str = "auto",
    impl: str = "auto",
    chunk_size: int | None = None,
) -> Result:
    """Write each value under its key into a state that fades, and read it with the query.

        S_t = Diag(e^{log_decay_t}) S_{t−1} + k_t v_tᵀ
        o_t = scale · S_tᵀ q_t
        with bonus u:    o_t = scale · (S_{t−1} + (u ∘ k_t) v_tᵀ)ᵀ q_t
        with normalizer: o_t divided by scale · q_tᵀ z_t + 1e-10, z the sum of k under the same decay

    Args:
        q, k: [B, T, H, K], floating.
        v: [B, T, HV, V]; HV a multiple of H. Value head h reads and writes with query and key head
            h // (HV / H).
        log_decay: natural logarithm of the decay, finite, ≤ 0, per token, never cumulative: None (nothing
            fades) | [HV] (constant, RetNet) | [B, T, HV] (a scalar, Mamba-2) | [B, T, HV, K] (one per key
            channel, GLA). −1e4 forgets everything.
        bonus: [HV, K], weight of the token's own writing when it is read before it decays the state
            (RWKV-6's u).
        normalizer: divide by the sum of weights; q and k should be such that it stays away from 0
            (non-negative feature maps).
        scale: factor of the output, None for K^−0.5.
        state: [B, HV, K, V], or with normalizer LinearState(S [B, HV, K, V], z [B, HV, K]), before the first
            token; one per packed sequence. None for zeros.
        return_state: also return the state after the last token.
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        form, impl: order of evaluation and implementation; see lavagna.ops.dispatch. "parallel" is refused
            where the pairs of tokens would not fit.
        chunk_size: tokens of a chunk, ≥ 1, in the form "chunk"; the others have no chunks. A hint about
            speed: it changes no result beyond rounding.

    Returns:
        output [B, T, HV, V] in v's dtype, and the state (float32, or float64 when any input is) or None.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: a chunk size below 1, or boundaries that are none.
        BackendError: the named form or implementation cannot run.

    Numerics:
        Computed in float32 (float64 when an input is), whatever the inputs' dtype. Only decays ≤ 1 are
        multiplied, each from the tokens it spans, so that forward and gradients keep their digits beside
        a log_decay of −1e4. Where log_decay is per key channel, the chunk form has first derivatives only.
        torch.set_float32_matmul_precision("medium") lets impl="cpu" make the products of a chunk of bfloat16 numbers.

    Source:
        Katharopoulos et al. 2020 (normalizer), Sun et al. 2023 (RetNet), Yang et al. 2023 (GLA), Dao & Gu
        2024 (Mamba-2), Peng et al. 2024 (RWKV-6, bonus). The papers of GLA and RWKV write the state as here,
        [K, V]; Mamba-2's [P, N] is our [V, K].
    """
    dims = Dims("gated_linear")
    dims.bind("q", q, "B T H K")
    dims.bind("k", k, "B T H K")
    dims.bind("v", v, "B T HV V")
    dims.at_least_one("H", "HV", "K", "V")
    B, T, H, HV, K, V = (dims[letter] for letter in ("B", "T", "H", "HV", "K", "V"))
    if HV % H:
        raise ShapeError(f"gated_linear: v must have a multiple of H={H} heads, got HV={HV}")
    if log_decay is not None:
        dims.bind("log_decay", log_decay, "HV", "B T HV", "B T HV K")
    if bonus is not None:
        dims.bind("bonus", bonus, "HV K")
    check_count("gated_linear", "chunk_size", chunk_size)
    bounds = None if cu_seqlens is None else check_cu_seqlens("gated_linear", cu_seqlens, B, T)
    rows = B if bounds is None else len(bounds) - 1

    S, z = _parts(state, normalizer)
    if S is not None:
        dims.bind("state.S" if normalizer else "state", S, f"{rows} HV K V")
    if z is not None:
        dims.bind("state.z", z, f"{rows} HV K")
    dtype = common_dtype("gated_linear", q=q, k=k, v=v, log_decay=log_decay, bonus=bonus, state=S, z=z)
    S = v.new_zeros(rows, HV, K, V, dtype=dtype) if S is None else S.to(dtype)
    initial: Tensor | LinearState = S
    if normalizer:
        initial = LinearState(S, v.new_zeros(rows, HV, K, dtype=dtype) if z is None else z.to(dtype))

    timed, fixed = {"q": q, "k": k, "v": v}, {"log_decay": log_decay, "bonus": bonus}
    if log_decay is not None and (log_decay.ndim > 1 or bounds is not None):
        # A constant decay in a packed batch is timed too: padding must not fade a state.
        timed["log_decay"] = log_decay if log_decay.ndim > 1 else log_decay.expand(B, T, HV)
        del fixed["log_decay"]
    options = {
        "normalizer": normalizer,
        "scale": K**-0.5 if scale is None else scale,
        "chunk_size": chunk_size,
    }
    call = Call(timed, fixed, options, initial, bounds, FILLS)
    return TABLE.run(call, form=form, impl=impl, dtype=v.dtype, return_state=return_state)


def _parts(state: Tensor | LinearState | None, normalizer: bool) -> tuple[Tensor | None, Tensor | None]:
    if state is None:
        return None, None
    expected = LinearState if normalizer else Tensor
    if not isinstance(state, expected):
        raise ShapeError(
            f"gated_linear: with normalizer={normalizer} the state must be a {expected.__name__}, "
            f"got {type(state).__name__}"
        )
    return (state.S, state.z) if isinstance(state, LinearState) else (state, None)
