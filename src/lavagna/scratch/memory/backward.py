"""Gradients of three memories by hand: sum, scalar gate, delta rule.

Each is read backward in time. G_t = ∂L/∂S_t collects what the output at t and all later tokens say about S_t:

    G_t = q_t do_tᵀ + (the way back through the step t + 1 of) G_{t+1},   G_T starts from the final state's gradient

and everything that token t wrote is learned from G_t. All arrays are (T, ..., ·) as in `run`, states (..., K, V).
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array
from .zoo import outer, read

__all__ = ["delta_backward", "gate_backward", "sum_backward"]


def sum_backward(dO: Array, dS: Array, S0: Array, Q: Array, K: Array, V: Array) -> tuple[Array, Array, Array, Array]:
    """S_t = S_{t−1} + k_t v_tᵀ,  o_t = S_tᵀ q_t  ⇒  dq, dk, dv (T, ..., ·), dS_0.

    S_t = S_0 + Σ_{i≤t} k_i v_iᵀ,  G_t = dS + Σ_{i≥t} q_i do_iᵀ: two running sums, from either end
    dq_t = S_t do_t,  dk_t = G_t v_t,  dv_t = G_tᵀ k_t,  dS_0 = G_1
    """
    S = S0 + np.cumsum(outer(K, V), 0)
    G = dS + np.cumsum(outer(Q, dO)[::-1], 0)[::-1]
    return _times(S, dO), _times(G, V), read(G, K), G[0]


def gate_backward(
    dO: Array, dS: Array, S0: Array, Q: Array, K: Array, V: Array, alpha: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """S_t = α_t S_{t−1} + k_t v_tᵀ,  o_t = S_tᵀ q_t  ⇒  dq, dk, dv, dα (T, ...), dS_0.

    G_t = q_t do_tᵀ + α_{t+1} G_{t+1}
    dq_t = S_t do_t,  dk_t = G_t v_t,  dv_t = G_tᵀ k_t,  dα_t = Σ G_t ∘ S_{t−1},  dS_0 = α_1 G_1
    """
    S = [S0]
    for k, v, a in zip(K, V, alpha, strict=True):
        S.append(a[..., None, None] * S[-1] + outer(k, v))
    dQ, dK, dV, dalpha = (np.empty_like(x) for x in (Q, K, V, alpha))
    for t in reversed(range(len(Q))):
        G = outer(Q[t], dO[t]) + dS
        dQ[t] = _times(S[t + 1], dO[t])
        dK[t], dV[t] = _times(G, V[t]), read(G, K[t])
        dalpha[t] = (G * S[t]).sum((-2, -1))
        dS = alpha[t][..., None, None] * G
    return dQ, dK, dV, dalpha, dS


def delta_backward(
    dO: Array, dS: Array, S0: Array, Q: Array, K: Array, V: Array, beta: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """e_t = v_t − S_{t−1}ᵀ k_t,  S_t = S_{t−1} + β_t k_t e_tᵀ,  o_t = S_tᵀ q_t  ⇒  dq, dk, dv, dβ (T, ...), dS_0.

    de_t = β_t G_tᵀ k_t
    dq_t = S_t do_t,  dv_t = de_t,  dβ_t = k_tᵀ G_t e_t
    dk_t = β_t G_t e_t − S_{t−1} de_t           k wrote the correction and read what was there
    G_{t−1} = q_{t−1} do_{t−1}ᵀ + G_t − k_t de_tᵀ = ... + (I − β_t k_t k_tᵀ) G_t
    """
    S, errors = [S0], []
    for k, v, b in zip(K, V, beta, strict=True):
        errors.append(v - read(S[-1], k))
        S.append(S[-1] + outer(b[..., None] * k, errors[-1]))
    dQ, dK, dV, dbeta = (np.empty_like(x) for x in (Q, K, V, beta))
    for t in reversed(range(len(Q))):
        G = outer(Q[t], dO[t]) + dS
        Ge = _times(G, errors[t])
        de = beta[t][..., None] * read(G, K[t])
        dQ[t] = _times(S[t + 1], dO[t])
        dK[t] = beta[t][..., None] * Ge - _times(S[t], de)
        dV[t] = de
        dbeta[t] = (K[t] * Ge).sum(-1)
        dS = G - outer(K[t], de)
    return dQ, dK, dV, dbeta, dS


def _times(S: Array, v: Array) -> Array:
    """S v: (..., K, V), (..., V) -> (..., K)."""
    return np.einsum("...kv,...v->...k", S, v)
