"""The memories, one token at a time, each as its paper writes it with the state as S (K, V).

A memory of fixed size cannot keep every key and value. What it does instead is one line each: **how yesterday's S
survives**, and what is written. `MEMORIES` lists them.

Shapes of one token: q, k (..., K), v (..., V), scalars (...), S (..., K, V); leading axes are sequences, heads, or
none. Each step takes the state and the token and gives back the state and the output; what does not depend on the
token comes by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import Array
from .features import dpfp, elu1, l2_normalised, sum_normalised

__all__ = [
    "MEMORIES",
    "decays_of_retnet",
    "delta_rule",
    "deltanet_2021",
    "deltanet_2024",
    "gated_deltanet",
    "gla",
    "kda",
    "linear_attention",
    "linear_attention_normalised",
    "mamba2",
    "outer",
    "read",
    "retnet",
    "run",
    "rwkv6",
    "rwkv7",
    "s4d",
    "s6",
]


def outer(k: Array, v: Array) -> Array:
    """k vᵀ: (..., K), (..., V) -> (..., K, V)."""
    return k[..., :, None] * v[..., None, :]


def read(S: Array, q: Array) -> Array:
    """o = Sᵀ q: (..., K, V), (..., K) -> (..., V)."""
    return np.einsum("...kv,...k->...v", S, q)


# Sums: everything survives. --------------------------------------------------------------------------------------


def linear_attention(S: Array, q: Array, k: Array, v: Array) -> tuple[Array, Array]:
    """S ← S + k vᵀ,  o = Sᵀ q = Σ_i (q · k_i) v_i: attention whose scores skip the softmax."""
    S = S + outer(k, v)
    return S, read(S, q)


def linear_attention_normalised(
    state: tuple[Array, Array], q: Array, k: Array, v: Array
) -> tuple[tuple[Array, Array], Array]:
    """S ← S + φ(k) vᵀ,  z ← z + φ(k),  o = Sᵀ φ(q) / φ(q)ᵀ z, with φ = elu + 1.

    The weights φ(q) · φ(k_i) are divided by their sum, as softmax does: o is an average of values.

    Source: Katharopoulos et al. 2020, equations 16 to 20; 1e-10 is added to the sum, for features that are all zero.
    """
    S, z = state  # (..., K, V), (..., K)
    q, k = elu1(q), elu1(k)
    S, z = S + outer(k, v), z + k
    return (S, z), read(S, q) / ((q * z).sum(-1, keepdims=True) + 1e-10)


# Gates: yesterday fades. -----------------------------------------------------------------------------------------


def decays_of_retnet(heads: int) -> Array:
    """γ_h = 1 − 2^{−5−h}, (heads,)."""
    return 1 - np.exp2(-5.0 - np.arange(heads))


def retnet(S: Array, q: Array, k: Array, v: Array, *, gamma: Array) -> tuple[Array, Array]:
    """S ← γ S + k vᵀ,  o = Sᵀ q, one γ (...) for each head, always the same (Sun et al. 2023, section 2.1)."""
    S = gamma[..., None, None] * S + outer(k, v)
    return S, read(S, q)


def mamba2(S: Array, x: Array, dt: Array, B: Array, C: Array, *, A: Array, D: Array) -> tuple[Array, Array]:
    """S ← e^{Δ A} S + B (Δ x)ᵀ,  y = Sᵀ C + D x: the input chooses how long its step Δ through time is.

    Args:
        S: (..., N, P).
        x: (..., P), in the place of v.
        dt: (...), Δ > 0.
        B, C: (..., N), in the places of k and q.
        A: (...), negative; D: (...), one for each head.

    Source: Dao and Gu 2024 (SSD).
    """
    S = np.exp(dt * A)[..., None, None] * S + outer(B, dt[..., None] * x)
    return S, read(S, C) + D[..., None] * x


def gla(S: Array, q: Array, k: Array, v: Array, alpha: Array) -> tuple[Array, Array]:
    """S ← Diag(α) S + k vᵀ,  o = Sᵀ q, α (..., K) from the input (Yang et al. 2023).

    The gate stands on the left: it fades key channels, rows of S. On the right it would fade value channels.
    """
    S = alpha[..., :, None] * S + outer(k, v)
    return S, read(S, q)


def rwkv6(S: Array, r: Array, k: Array, v: Array, w: Array, *, u: Array) -> tuple[Array, Array]:
    """o = (S + (u ∘ k) vᵀ)ᵀ r,  then S ← Diag(w) S + k vᵀ (Peng et al. 2024).

    It reads before it writes; the bonus u (..., K) is the weight of the present token, which no decay has touched.
    """
    o = read(S + outer(u * k, v), r)
    return w[..., :, None] * S + outer(k, v), o


# The delta rule: what the key already finds is corrected. ------------------------------------------------------------


def correct(S: Array, k: Array, v: Array, beta: Array) -> Array:
    """(I − β k kᵀ) S + β k vᵀ: take out the share β of what k finds, put the same share of v in its place."""
    beta = beta[..., None, None]
    return (np.eye(k.shape[-1]) - beta * outer(k, k)) @ S + beta * outer(k, v)


def delta_rule(S: Array, q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, Array]:
    """S ← (I − β k kᵀ) S + β k vᵀ,  o = Sᵀ q, with q and k as they come."""
    S = correct(S, k, v, beta)
    return S, read(S, q)


def deltanet_2021(S: Array, q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, Array]:
    """The delta rule on features of sum one: q ← φ(q)/Σφ(q), k likewise, φ = DPFP (Schlag et al. 2021); S (6 K, V)."""
    return delta_rule(S, sum_normalised(dpfp(q)), sum_normalised(dpfp(k)), v, beta)


def deltanet_2024(S: Array, q: Array, k: Array, v: Array, beta: Array) -> tuple[Array, Array]:
    """The delta rule on keys of length one: I − β k kᵀ is then a projection at β = 1 (Yang et al. 2024)."""
    return delta_rule(S, l2_normalised(q), l2_normalised(k), v, beta)


def gated_deltanet(S: Array, q: Array, k: Array, v: Array, beta: Array, alpha: Array) -> tuple[Array, Array]:
    """S ← α (I − β k kᵀ) S + β k vᵀ, α (...) in [0, 1]: it fades, then it corrects (Yang et al. 2025)."""
    return deltanet_2024(alpha[..., None, None] * S, q, k, v, beta)


def kda(S: Array, q: Array, k: Array, v: Array, beta: Array, alpha: Array) -> tuple[Array, Array]:
    """S ← (I − β k kᵀ) Diag(α) S + β k vᵀ, α (..., K): each key channel fades by itself (Kimi Linear, 2025)."""
    return deltanet_2024(alpha[..., :, None] * S, q, k, v, beta)


def rwkv7(S: Array, r: Array, k: Array, v: Array, w: Array, kappa: Array, eta: Array) -> tuple[Array, Array]:
    """S ← (Diag(w) − (η ∘ κ) κᵀ) S + k vᵀ,  o = Sᵀ r: what is erased and what is written are chosen apart.

    κ (..., K) has length one, η (..., K) in [0, 1]; κ reads the memory before it fades (Peng et al. 2025).
    """
    S = w[..., :, None] * S - outer(eta * kappa, read(S, kappa)) + outer(k, v)
    return S, read(S, r)


# State-space models: a state for each channel. ------------------------------------------------------------------------


def s6(h: Array, x: Array, dt: Array, B: Array, C: Array, *, A: Array, D: Array) -> tuple[Array, Array]:
    """h ← e^{Δ A} ∘ h + Δ B x,  y = C h + D x, in every channel by itself (Gu and Dao 2023, algorithm 2).

    Args:
        h: (..., D, N).
        x: (..., D).
        dt: (..., D), Δ > 0.
        B, C: (..., N), from the input: that is the selection.
        A: (D, N), negative; D: (D,).
    """
    dt = dt[..., None]
    h = np.exp(dt * A) * h + dt * B[..., None, :] * x[..., None]
    return h, (C[..., None, :] * h).sum(-1) + D * x


def s4d(
    h: np.ndarray, x: Array, *, dt: Array, A: np.ndarray, B: np.ndarray, C: np.ndarray, D: Array
) -> tuple[np.ndarray, Array]:
    """h ← Ā ∘ h + B̄ x,  y = 2 Re Σ_n C h + D x,  Ā = e^{Δ A},  B̄ = (e^{Δ A} − 1)/A · B (Gu et al. 2022).

    The same at every token: the rule that S6 made selective.

    Args:
        h: (..., D, N), complex.
        x: (..., D).
        dt: (D,), Δ.
        A, B, C: (D, N), complex, one of each conjugate pair; A ≠ 0.
        D: (D,).
    """
    decay = np.exp(dt[:, None] * A)
    h = decay * h + (decay - 1) / A * B * x[..., None]
    return h, 2 * (C * h).sum(-1).real + D * x


Step = Callable[..., tuple[Any, Array]]

#: name -> step
MEMORIES: dict[str, Step] = {
    step.__name__: step
    for step in (
        linear_attention,
        linear_attention_normalised,
        retnet,
        mamba2,
        gla,
        rwkv6,
        delta_rule,
        deltanet_2021,
        deltanet_2024,
        gated_deltanet,
        kda,
        rwkv7,
        s6,
        s4d,
    )
}


def run(step: Step, state: Any, *tokens: Array, **constants: Array) -> tuple[Array, Any]:
    """Walk through a sequence.

    Args:
        step: one of MEMORIES.
        state: before the first token.
        tokens: what the step takes of each token, in its order, time first: (T, ..., K) and so on.
        constants: what it takes by name.

    Returns:
        The outputs (T, ..., V), and the state after the last token.
    """
    outputs = []
    for token in zip(*tokens, strict=True):
        state, o = step(state, *token, **constants)
        outputs.append(o)
    return np.array(outputs), state
