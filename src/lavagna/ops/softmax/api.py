"""attention: the contract, the validation and the choice of an implementation."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError, ShapeError, StateError
from ...shapes import Dims
from ..dispatch import Call, Result, Row, Table, common_dtype, device_of
from ..options import check_count
from ..packing import Padding, check_cu_seqlens
from .cache import KVCache

__all__ = ["TABLE", "attention"]

TABLE = Table(
    "attention",
    (
        Row("cpu", "parallel", "lavagna.ops.softmax.cpu:attend", widens=False),
        Row("torch", "parallel", "lavagna.ops.softmax.parallel:attend", widens=False),
        Row("reference", "recurrent", "lavagna.ops.softmax.reference:attention"),
    ),
)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = True,
    window: int | None = None,
    token_mask: Tensor | None = None,
    scale: float | None = None,
    state: KVCache | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    impl: str = "auto",
) -> Result:
    """Read, with each query, the values of the tokens that it sees, weighted by a softmax over their keys.

        o_t = Σ_s softmax_s(scale · q_t · k_s) v_s,  s from t−window+1 (or the first token) to t (or the last)

    Args:
        q: [B, T, H, K], floating. Logits |scale · q·k| up to 1e6 have finite gradients (Numerics); not checked.
        k: [B, T, G, K]; H is a multiple of G, and head h reads group h // (H / G).
        v: [B, T, G, V].
        causal: a token sees itself and those before it; otherwise every token of its sequence.
        window: of those, the last `window` alone, itself included; 1 or more, with causal=True.
        token_mask: [B, T] bool, True = a real token. Others are seen by none, enter no state, and have zero output.
        scale: factor of the logits; None: K^-0.5.
        state: KVCache of the tokens before, one row per row or per packed sequence; rows may have read
            different numbers. With causal=True.
        return_state: also return the cache with these tokens in it (their last window−1 if there is a window).
        cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.
        impl: implementation; see lavagna.ops.dispatch.

    Returns:
        output [B, T, H, V] in q's dtype, and the state, in the dtype of k and v, or None.
        The state that came stays as it was and can be continued again.

    Raises:
        ShapeError: shapes, dtypes or devices do not fit.
        InputError: options that exclude each other, or boundaries that are none.
        StateError: the state is none, or keeps fewer tokens than this window sees.
        BackendError: the named implementation cannot run.

    Numerics:
        In the dtype of k and v (the wider one), to which q is rounded; half precision with sums in float32.
        Autocast changes nothing.
        Gradients carry an error of about max|logit| · eps of the largest one (eps of float32 in half precision): 1e-3
        at logits of 1e4 in float32, nothing is right from 1e7 on, and near 1e10 they are NaN. Outputs have no
        such bound.
        A query that sees no key cannot occur, so no softmax runs over −inf alone.

    Source:
        Vaswani et al. 2017, equation 1; grouped queries: Ainslie et al. 2023; window: Beltagy et al. 2020.
    """
    dims = Dims("attention")
    dims.bind("q", q, "B T H K")
    dims.bind("k", k, "B T G K")
    dims.bind("v", v, "B T G V")
    dims.at_least_one("K")
    B, T, H, G = (dims[letter] for letter in "BTHG")
    if G == 0 or H % G:
        raise ShapeError(f"attention: heads of q must be a multiple of the {G} of k and v, got {H}")
    if token_mask is not None:
        dims.bind("token_mask", token_mask, "B T")
        if token_mask.dtype != torch.bool:
            raise ShapeError(f"attention: token_mask must have dtype torch.bool, got {token_mask.dtype}")
    common_dtype("attention", q=q, k=k, v=v)
    device_of("attention", q=q, token_mask=token_mask)
    check_count("attention", "window", window)
    if window is not None and not causal:
        raise InputError(f"attention: window needs causal=True, got window={window} with causal=False")
    if not causal and (state is not None or return_state):
        raise InputError("attention: a state needs causal=True, got causal=False: its old outputs would change")
    output_dtype = q.dtype
    if not q.dtype == k.dtype == v.dtype:
        dtype = torch.promote_types(k.dtype, v.dtype)
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)

    bounds = None if cu_seqlens is None else check_cu_seqlens("attention", cu_seqlens, B, T)
    rows = B if bounds is None else len(bounds) - 1
    if state is None:
        state = KVCache.empty(rows, G, dims["K"], dims["V"], q.dtype, q.device)
    else:
        _check_state(state, dims, rows, window, k, v)

    timed = {"q": q, "k": k, "v": v}
    padding = None
    if token_mask is not None and not bool(token_mask.all()):
        padding = Padding.of(token_mask)
        before = F.pad(token_mask.flatten().cumsum(0), (1, 0))  # real tokens before each place
        edges = range(0, (B + 1) * T, T) if bounds is None else bounds
        bounds = before[torch.tensor(edges, device=before.device)].tolist()
        timed = {name: padding.pack(x) for name, x in timed.items()}
    if bounds is not None:
        timed["real"] = timed["q"].new_ones(timed["q"].shape[:2], dtype=torch.bool)
    options = {
        "causal": causal,
        "window": window,
        "scale": dims["K"] ** -0.5 if scale is None else scale,
        "keep": return_state,
    }
    call = Call(timed, {}, options, state, bounds, {"real": False})
    output, final = TABLE.run(call, form="auto", impl=impl, dtype=output_dtype, return_state=return_state)
    return Result(output if padding is None else padding.unpack(output), final)


def _check_state(state: KVCache, dims: Dims, rows: int, window: int | None, k: Tensor, v: Tensor) -> None:
    if not isinstance(state, KVCache):
        raise StateError(f"attention: state must be a KVCache, got {type(state).__name__}")
    if not state.fits(rows, k, v):
        dims.bind("state.keys", state.keys, f"{rows} S G K")
        dims.bind("state.values", state.values, f"{rows} S G V")
        dims.bind("state.seen", state.seen, f"{rows}")
        device_of("attention", k=k, state=state.keys)
        raise StateError(
            f"attention: state must have the dtype {k.dtype} of k and v, "
            f"got {state.keys.dtype} keys and {state.values.dtype} values"
        )
    if not state.keeps(window):
        needed = "all tokens" if window is None else f"the last {window - 1} tokens"
        raise StateError(
            f"attention: window={window} needs {needed}, got a state that kept the last {max(state.lengths)}"
        )
