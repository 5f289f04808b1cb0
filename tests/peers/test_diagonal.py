"""diagonal_ssm against dense matrix exponentials, the convolution kernel as S4D prints it, fla and mambapy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lavagna.ops import diagonal_ssm

from ..support.fla import fla

pytestmark = pytest.mark.peers

each_form = pytest.mark.parametrize("form", ["recurrent", "chunk", "parallel"])


def draw(T: int = 70, D: int = 3, N: int = 4) -> dict[str, Tensor]:
    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.complex128)

    return {
        "x": torch.randn(2, T, D, dtype=torch.float64),
        "dt": torch.exp(torch.rand(D, dtype=torch.float64) * math.log(100) + math.log(1e-3)),
        "A": torch.complex(-torch.rand(D, N), math.pi * torch.arange(N).repeat(D, 1).float()).to(torch.complex128),
        "B": numbers(D, N),
        "C": numbers(D, N),
        "D": torch.randn(D, dtype=torch.float64),
        "state": numbers(2, D, N),
    }


@each_form
def test_a_dense_matrix_exponential(form: str) -> None:
    """h' = Ah + Bx with x held for Δ: each pair is a real 2 × 2 block, and e^{Δ[[A, B], [0, 0]]} holds Ā and B̄."""
    given = draw()
    D, N = given["A"].shape
    output, state = diagonal_ssm(**given, return_state=True, form=form)
    for d in range(D):
        block = torch.zeros(2 * N + 1, 2 * N + 1, dtype=torch.float64)
        for n in range(N):
            a, b = given["A"][d, n].real, given["A"][d, n].imag
            block[2 * n : 2 * n + 2, 2 * n : 2 * n + 2] = torch.stack([torch.stack([a, -b]), torch.stack([b, a])])
        block[:-1, -1] = torch.view_as_real(given["B"][d]).flatten()
        discrete = torch.linalg.matrix_exp(given["dt"][d] * block)
        # 2 Re (c h) = 2 (Re c Re h − Im c Im h)
        read = 2 * torch.view_as_real(given["C"][d].conj().resolve_conj()).flatten()
        for b in range(2):
            h = torch.view_as_real(given["state"][b, d]).flatten()
            for t in range(given["x"].shape[1]):
                x = given["x"][b, t, d]
                h = discrete[:-1, :-1] @ h + discrete[:-1, -1] * x
                torch.testing.assert_close(output[b, t, d], read @ h + given["D"][d] * x)
            torch.testing.assert_close(torch.view_as_real(state[b, d]).flatten(), h)


@each_form
def test_the_kernel_of_the_paper(form: str) -> None:
    """K_l = 2 Re Σ_n C (e^{ΔA} − 1)/A · B · e^{lΔA}, the Vandermonde product written out, then a causal convolution."""
    given = draw()
    del given["state"]
    T = given["x"].shape[1]
    z = given["dt"][:, None] * given["A"]
    vandermonde = torch.exp(z[..., None] * torch.arange(T))
    kernel = 2 * torch.einsum("dn,dnl->dl", given["C"] * given["B"] * (torch.exp(z) - 1) / given["A"], vandermonde).real
    expected = torch.stack(
        [torch.einsum("dl,bld->bd", kernel[:, : t + 1].flip(1), given["x"][:, : t + 1]) for t in range(T)], 1
    )
    output = diagonal_ssm(**given, form=form).output
    torch.testing.assert_close(output, expected + given["D"] * given["x"])


@each_form
def test_fla_hgrn(form: str) -> None:
    """One real state a channel with B̄ = 1 is h ← e^g h + x, g the same at every token."""
    recurrent = fla("hgrn.naive", "naive_recurrent_hgrn")
    x, g, state = torch.randn(2, 70, 3), -torch.rand(3), torch.randn(2, 3)
    expected, final = recurrent(x, g.expand(2, 70, 3), initial_state=state, output_final_state=True)
    one = torch.ones(3, 1)
    output, h = diagonal_ssm(
        x,
        torch.ones(3),
        g[:, None],
        (g / torch.expm1(g))[:, None],
        one,
        state=state[..., None],
        return_state=True,
        form=form,
    )
    torch.testing.assert_close(output, expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(h[..., 0], final, atol=2e-6, rtol=1e-5)


@each_form
def test_mambapy_scan(form: str) -> None:
    """Its parallel scan knows nothing of A and B: h_t = a h_{t−1} + b_t, here with complex a and b."""
    from mambapy.pscan import pscan

    given = draw()
    del given["state"], given["D"]
    z = given["dt"][:, None] * given["A"]
    write = (torch.exp(z) - 1) / given["A"] * given["B"]
    h = pscan(torch.exp(z).expand(2, 70, 3, 4).contiguous(), write * given["x"][..., None])
    output, state = diagonal_ssm(**given, return_state=True, form=form)
    torch.testing.assert_close(state, h[:, -1])
    torch.testing.assert_close(output, 2 * (given["C"] * h).sum(-1).real)
