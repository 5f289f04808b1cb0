"""diagonal_ssm: numbers by hand, an exact hold, the way to A = 0, and what is never held."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError
from lavagna.ops import diagonal_ssm

from ..support.largest import Largest

FORMS = ("recurrent", "chunk", "parallel", "reference")
each_form = pytest.mark.parametrize("form", FORMS)


def choice(form: str) -> dict[str, str]:
    return {"impl": "reference"} if form == "reference" else {"form": form, "impl": "torch"}


def double(*values: complex) -> Tensor:
    """[1, n], or [n] complex numbers as the parameters of one channel."""
    dtype = torch.complex128 if any(isinstance(v, complex) for v in values) else torch.float64
    return torch.tensor([values], dtype=dtype)


def sequence(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(1, -1, 1)


def draw(B: int = 2, T: int = 50, D: int = 3, N: int = 4, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    complex_dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    A = torch.complex(torch.full((D, N), -0.5), math.pi * torch.arange(N).float().repeat(D, 1))
    return {
        "x": torch.randn(B, T, D, dtype=dtype),
        "dt": torch.rand(D, dtype=dtype) * 0.1,
        "A": A.to(complex_dtype),
        "B": torch.randn(D, N, dtype=complex_dtype),
        "C": torch.randn(D, N, dtype=complex_dtype),
        "D": torch.randn(D, dtype=dtype),
    }


# Numbers by hand -------------------------------------------------------------------------------------------


@each_form
def test_two_tokens_by_hand_with_a_real_decay(form: str) -> None:
    """Ā = ½ and B̄ = 1: from h = 4 the inputs 1 and 3 make 3 and 4.5; read by 2, with a skip of 10."""
    log2 = math.log(2)
    output, state = diagonal_ssm(
        sequence(1, 3),
        torch.ones(1, dtype=torch.float64),
        double(-log2),
        double(2 * log2),
        double(2.0),
        torch.tensor([10.0], dtype=torch.float64),
        state=torch.tensor([[[4.0]]], dtype=torch.float64),
        return_state=True,
        **choice(form),
    )
    torch.testing.assert_close(output, sequence(16, 39))
    torch.testing.assert_close(state, torch.tensor([[[4.5]]], dtype=torch.float64))


@each_form
def test_three_tokens_by_hand_with_a_quarter_turn(form: str) -> None:
    """Ā = i and B̄ = 1: the inputs 1, 2, 5 make h = 1, i + 2, −1 + 2i + 5; y is twice its real part."""
    turn = 0.5j * math.pi
    output, state = diagonal_ssm(
        sequence(1, 2, 5),
        torch.ones(1, dtype=torch.float64),
        double(turn),
        double(turn / (1j - 1)),
        double(1.0 + 0j),
        return_state=True,
        **choice(form),
    )
    torch.testing.assert_close(output, sequence(2, 4, 8))
    torch.testing.assert_close(state, torch.tensor([[[4 + 2j]]], dtype=torch.complex128))


@each_form
def test_without_decay_it_integrates(form: str) -> None:
    """A = 0: Ā = 1 and B̄ = Δ B."""
    x = torch.randn(1, 30, 1, dtype=torch.float64)
    dt = torch.tensor([0.25], dtype=torch.float64)
    output = diagonal_ssm(x, dt, double(0.0), double(3.0), double(1.0), **choice(form)).output
    torch.testing.assert_close(output, 0.75 * x.cumsum(1))


@each_form
def test_an_input_held_twice_as_long_is_a_step_twice_as_long(form: str) -> None:
    """What zero-order hold means, and no other rule fulfils exactly."""
    given = draw(T=40)
    long = diagonal_ssm(**{**given, "dt": 2 * given["dt"]}, **choice(form)).output
    twice = diagonal_ssm(**{**given, "x": given["x"].repeat_interleave(2, 1)}, **choice(form)).output
    torch.testing.assert_close(twice[:, 1::2], long)


@pytest.mark.parametrize("size", [1, 3, 50, 64, 1000])
def test_the_chunk_size_changes_nothing(size: int) -> None:
    given = draw(T=130)
    expected = diagonal_ssm(**given, return_state=True, impl="reference")
    output, state = diagonal_ssm(**given, return_state=True, form="chunk", chunk_size=size)
    torch.testing.assert_close(output, expected.output)
    torch.testing.assert_close(state, expected.state)


@each_form
def test_a_real_write_beside_a_complex_decay(form: str) -> None:
    """S4D's B is often 1."""
    given = draw()
    ones = torch.ones_like(given["B"].real)
    got = diagonal_ssm(**{**given, "B": ones}, **choice(form)).output
    torch.testing.assert_close(got, diagonal_ssm(**{**given, "B": ones + 0j}).output)


# Near zero, and far from it --------------------------------------------------------------------------------


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("A", [0.0, -1e-30, -1e-12, -1e-5, -1e-3])
def test_derivatives_towards_a_decay_of_none(form: str, dtype: torch.dtype, A: float) -> None:
    """One token: y = (e^{ΔA} − 1)/A, so dy/dA is Δ²/2 + Δ³A/3 + Δ⁴A²/8 and dy/dΔ is e^{ΔA}."""
    dt = torch.tensor([0.5], dtype=dtype, requires_grad=True)
    decay = torch.tensor([[A]], dtype=dtype, requires_grad=True)
    one = torch.ones(1, 1, dtype=dtype)
    y = diagonal_ssm(one[None], dt, decay, one, one, **choice(form)).output
    d_dt, d_decay = torch.autograd.grad(y.sum(), (dt, decay))
    exact = 0.5**2 / 2 + 0.5**3 * A / 3 + 0.5**4 * A**2 / 8
    # The reference subtracts nothing near zero, nor does anyone else: full precision down to A = 0.
    tolerance = 1e-9 if dtype == torch.float64 else 1e-6
    assert d_decay.item() == pytest.approx(exact, rel=tolerance)
    assert d_dt.item() == pytest.approx(math.exp(0.5 * A), rel=tolerance)


@each_form
@pytest.mark.parametrize("A", [-0.3 + 0.4j, -0.9 + 0.1j, -0.2 + 1.1j, -2 + 7j, 6.283185307179586j, -1e4 + 3j])
def test_derivatives_for_decays_of_any_size(form: str, A: complex) -> None:
    """Around |ΔA| = 1, where the series gives way to the quotient, and beyond."""
    given = draw(B=1, T=3, D=1, N=1)
    given["A"] = torch.tensor([[A]], dtype=torch.complex128)
    given["dt"] = torch.ones(1, dtype=torch.float64)
    tensors = [t.requires_grad_() for t in given.values()]
    assert torch.autograd.gradcheck(lambda *t: diagonal_ssm(*t, **choice(form)).output, tensors, fast_mode=True)


@each_form
def test_a_loud_start_does_not_drown_what_follows(form: str) -> None:
    """A transform in float32 spreads 6e-8 of the loudest input over all outputs; the loud one here has faded."""
    given = draw(B=1, T=200, dtype=torch.float32)
    given["A"] = given["A"] - 100
    given["dt"] = torch.full((3,), 0.1)
    given["x"][:, 0] = 1e6
    exact = diagonal_ssm(
        **{n: t.to(torch.complex128 if t.is_complex() else torch.float64) for n, t in given.items()},
        impl="reference",
    ).output
    output = diagonal_ssm(**given, **choice(form)).output
    torch.testing.assert_close(output[:, 10:].double(), exact[:, 10:], atol=1e-5, rtol=1e-5)


# State -----------------------------------------------------------------------------------------------------


@each_form
def test_padding_behind_a_short_sequence_does_not_fade_its_state(form: str) -> None:
    """Lengths within one group of equal padding; every token fades the state, a padded one must not."""
    lengths = (33, 63, 48, 0, 1)
    given = draw(B=1, T=sum(lengths))
    state = torch.randn(5, 3, 4, dtype=torch.complex128)
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    output, final = diagonal_ssm(**given, state=state, cu_seqlens=bounds, return_state=True, **choice(form))
    for m, (a, b) in enumerate(zip(bounds.tolist(), bounds.tolist()[1:], strict=False)):
        alone = {**given, "x": given["x"][:, a:b]}
        expected = diagonal_ssm(**alone, state=state[m : m + 1], return_state=True, impl="reference")
        torch.testing.assert_close(output[:, a:b], expected.output)
        torch.testing.assert_close(final[m : m + 1], expected.state)


@pytest.mark.parametrize("kind", ["complex", "real"])
def test_the_state_has_the_kind_of_A(kind: str) -> None:
    given = draw(dtype=torch.float32)
    if kind == "real":
        given = {name: t.real if t.is_complex() else t for name, t in given.items()}
    given["x"] = given["x"].bfloat16()
    output, state = diagonal_ssm(**given, return_state=True)
    assert output.dtype == torch.bfloat16
    assert state.dtype == (torch.complex64 if kind == "complex" else torch.float32)


# Memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["chunk", "parallel"])
def test_no_state_of_every_token(form: str) -> None:
    """B·T·D·N and D·N·T numbers are 524,288 here; an eighth of that is never held, forward or backward."""
    given = [t.requires_grad_() for t in draw(B=1, T=4096, D=2, N=64).values()]
    with Largest() as largest:
        output, state = diagonal_ssm(*given, return_state=True, form=form)
        torch.autograd.grad([output.sum(), state.real.sum()], given)
    assert 4096 * 2 <= largest.elements <= 4096 * 2 * 64 // 8


# Clear refusal ---------------------------------------------------------------------------------------------


def test_refusals() -> None:
    given = draw()
    real = {name: t.real if t.is_complex() else t for name, t in given.items()}
    with pytest.raises(ShapeError, match="x must have a real floating dtype"):
        diagonal_ssm(**{**given, "x": given["x"] + 0j})
    with pytest.raises(ShapeError, match=r"B must have a real floating dtype, got torch\.complex128"):
        diagonal_ssm(**{**real, "B": given["B"]})
    with pytest.raises(ShapeError, match="state must have a real floating dtype"):
        diagonal_ssm(**real, state=torch.zeros(2, 3, 4, dtype=torch.complex128))
    with pytest.raises(InputError, match="chunk_size must be an integer from 1 on, got 0"):
        diagonal_ssm(**given, chunk_size=0)
