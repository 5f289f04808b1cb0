"""The delta rule twice: token by token, and in chunks, where the products of erasures are never formed.

**Token by token.** With u_t = β_t (v_t − S_{t−1}ᵀ k_t), the corrected share of the error,

    S_t = (I − β_t k_t k_tᵀ) S_{t−1} + β_t k_t v_tᵀ = S_{t−1} + k_t u_tᵀ                                      (1)

so that nothing K × K is needed: each token adds one outer product.

**In a chunk** of C tokens that starts from S_0, (1) sums up to S_t = S_0 + Σ_{i≤t} k_i u_iᵀ. Put into u_t:

    u_t = β_t (v_t − S_0ᵀ k_t − Σ_{i<t} (k_i · k_t) u_i)                                                     (2)

The u_t depend on earlier ones, linearly, through C × C numbers that do not know the state. As rows of matrices,
K, V, U (C, ·), L = strict lower triangle of Diag(β) K Kᵀ:

    (I + L) U = Diag(β) (V − K S_0),  thus U = Ũ − W S_0  with
    (I + L) W = Diag(β) K,  (I + L) Ũ = Diag(β) V                                                           (3)

W and Ũ are the WY form of the product of Householder-like matrices (Bischof and Van Loan 1987): the erasures of a whole
chunk are I − Kᵀ W, a matrix of rank C. They need nothing of the chunks before, so all chunks have theirs at once. Then

    S_C = S_0 + Kᵀ U
    O = Q S_0 + (Q Kᵀ, lower triangle with diagonal) U                                                        (4)

and C steps of rank one have become a few matrix products.

Source: Yang et al. 2024, who write S as (V, K).
"""

from __future__ import annotations

import numpy as np

from ...errors import InputError
from ..arrays import Array

__all__ = ["delta_chunked", "delta_recurrent", "wy"]


def delta_recurrent(S: Array, Q: Array, K: Array, V: Array, beta: Array) -> tuple[Array, Array]:
    """Equation (1), one sequence: S (K, V), Q, K (T, K), V (T, V), β (T,) -> O (T, V), S."""
    O = np.empty((len(Q), V.shape[1]))
    for t, (q, k, v, b) in enumerate(zip(Q, K, V, beta, strict=True)):
        u = b * (v - k @ S)
        S = S + np.outer(k, u)
        O[t] = q @ S
    return O, S


def delta_chunked(S: Array, Q: Array, K: Array, V: Array, beta: Array, chunk: int = 64) -> tuple[Array, Array]:
    """Equations (3) and (4), chunk after chunk; same arguments and results."""
    if chunk < 1:
        raise InputError(f"delta_chunked: chunk must be at least 1, got {chunk}")
    O = np.empty((len(Q), V.shape[1]))
    for start in range(0, len(Q), chunk):
        now = slice(start, start + chunk)
        W, U_tilde = wy(K[now], V[now], beta[now])
        U = U_tilde - W @ S
        O[now] = Q[now] @ S + np.tril(Q[now] @ K[now].T) @ U
        S = S + K[now].T @ U
    return O, S


def wy(K: Array, V: Array, beta: Array) -> tuple[Array, Array]:
    """Equation (3): W (C, K) and Ũ (C, V) of one chunk."""
    strengths = beta[:, None]
    L = np.tril(strengths * (K @ K.T), -1)
    solved = np.linalg.solve(np.eye(len(K)) + L, strengths * np.concatenate([K, V], 1))
    W, U_tilde = np.split(solved, [K.shape[1]], axis=1)
    return W, U_tilde
