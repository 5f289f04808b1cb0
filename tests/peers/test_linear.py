"""gated_linear beside flash-linear-attention's plain functions and transformers' Mamba-2."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lavagna.ops import gated_linear
from lavagna.ops.linear.api import LinearState

from ..support.budget import close
from ..support.fla import fla

pytestmark = pytest.mark.peers

forms = pytest.mark.parametrize("form", ["recurrent", "chunk", "parallel"])

#: they compute in float32, whatever comes in
FLOAT32 = 2e-6


def draw(*gate: int, B: int = 2, T: int = 64, H: int = 3, K: int = 8, V: int = 5, **more: tuple[int, ...]) -> dict:
    """q, k, v, log_decay of the shape `gate` and normal tensors of other shapes, in float32."""
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, H, V), **more}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    if gate:
        tensors["log_decay"] = -torch.rand(gate)
    return {name: t.requires_grad_() for name, t in tensors.items()}


def compare(given: dict[str, Tensor], ours: list[Tensor], theirs: list[Tensor], tolerance: float = FLOAT32) -> None:
    """Every value, and every gradient of a random loss on all of them."""
    ups = [torch.randn_like(t) for t in ours]
    values = list(given.values())
    found = [*ours, *torch.autograd.grad(ours, values, ups)]
    expected = [*theirs, *torch.autograd.grad(theirs, values, ups)]
    for name, got, want in zip([*range(len(ours)), *given], found, expected, strict=True):
        close(str(name), got, want, tolerance)


def head_first(*tensors: Tensor) -> list[Tensor]:
    return [t.transpose(1, 2) for t in tensors]


@forms
def test_gla(form: str) -> None:
    given = draw(2, 64, 3, 8, state=(2, 3, 8, 5))
    state = given["state"]
    tensors = [given[name] for name in ("q", "k", "v", "log_decay")]
    theirs = fla("gla.naive", "naive_recurrent_gla")(*tensors, initial_state=state, output_final_state=True)
    ours = gated_linear(*tensors, state=state, return_state=True, form=form)
    compare(given, [*ours], [*theirs])


@forms
@pytest.mark.parametrize("name", ["naive_recurrent_simple_gla", "naive_chunk_simple_gla"])
def test_simple_gla(form: str, name: str) -> None:
    given = draw(2, 71, 3, T=71, state=(2, 3, 8, 5))
    state = given["state"]
    tensors = [given[n] for n in ("q", "k", "v", "log_decay")]
    theirs = fla("simple_gla.naive", name)(*tensors, scale=0.7, initial_state=state, output_final_state=True)
    ours = gated_linear(*tensors, scale=0.7, state=state, return_state=True, form=form)
    compare(given, [*ours], [*theirs], 1e-5)  # the chunk form there subtracts cumulative sums


@forms
def test_simple_gla_in_parallel(form: str) -> None:
    given = draw(2, 64, 3)
    theirs, _ = fla("simple_gla.naive", "naive_parallel_simple_gla")(
        given["q"], given["k"], given["v"], given["log_decay"]
    )
    compare(given, [gated_linear(**given, form=form).output], [theirs], 1e-5)


@forms
def test_retention(form: str) -> None:
    """Heads come first there, and the decays are 1 − 2^(−5−h)."""
    given = draw(T=100)
    gamma = torch.log1p(-(2.0 ** (-5 - torch.arange(3.0))))
    theirs = fla("retention.naive", "naive_retention")(*head_first(*given.values()))
    ours = gated_linear(**given, log_decay=gamma, form=form).output
    compare(given, [ours], head_first(theirs), 1e-5)  # powers of two of products there


@forms
def test_linear_attention(form: str) -> None:
    given = draw(state=(2, 3, 8, 5))
    state = given["state"]
    tensors = [given[name] for name in "qkv"]
    theirs = fla("linear_attn.naive", "naive_recurrent_linear_attn")(
        *tensors, initial_state=state, output_final_state=True
    )
    ours = gated_linear(*tensors, state=state, return_state=True, form=form)
    compare(given, [*ours], [*theirs])


@forms
def test_normalized_linear_attention(form: str) -> None:
    """z has a dimension of one for time there; its state is given as a pair too."""
    given = {name: t.detach().abs().requires_grad_() for name, t in draw(S=(2, 3, 8, 5), z=(2, 3, 8)).items()}
    tensors, S, z = [given[name] for name in "qkv"], given["S"], given["z"]
    output, (S_end, z_end) = fla("linear_attn.naive", "naive_recurrent_linear_attn")(
        *tensors, initial_state=(S, z[:, None]), output_final_state=True, normalize=True
    )
    ours = gated_linear(*tensors, normalizer=True, state=LinearState(S, z), return_state=True, form=form)
    compare(given, [ours.output, *ours.state], [output, S_end, z_end[:, 0]])
    chunked = fla("linear_attn.naive", "naive_chunk_linear_attn")(*tensors, normalize=True)
    close("chunked", gated_linear(*tensors, normalizer=True, form=form).output, chunked, FLOAT32)


@forms
def test_rwkv6(form: str) -> None:
    """Heads come first there; its recurrence writes in place, so gradients come from its own backward."""
    given = draw(2, 64, 3, 8, bonus=(3, 8), state=(2, 3, 8, 5))
    names = ("q", "k", "v", "log_decay")
    plain = head_first(*(given[name].detach() for name in names))
    start = given["state"].detach()
    theirs, final = fla("rwkv6.recurrent_naive", "naive_recurrent_rwkv6")(
        *plain, given["bonus"].detach(), scale=1.0, initial_state=start, output_final_state=True
    )
    ours = gated_linear(
        *(given[name] for name in names),
        given["bonus"],
        scale=1.0,
        state=given["state"],
        return_state=True,
        form=form,
    )
    close("output", ours.output, theirs.transpose(1, 2), FLOAT32)
    close("state", ours.state, final, FLOAT32)

    # That backward starts from zeros and leaves out the scale.
    ours = gated_linear(*(given[name] for name in names), given["bonus"], scale=1.0, form=form)
    up = torch.randn_like(ours.output)
    found = torch.autograd.grad(ours.output, [given[name] for name in (*names, "bonus")], up)
    dq, dk, dv, dw, du, _ = fla("rwkv6.recurrent_naive", "naive_recurrent_rwkv6_bwd")(
        *plain, given["bonus"].detach(), theirs, *head_first(up)
    )
    for name, got, want in zip((*names, "bonus"), found, (*head_first(dq, dk, dv, dw), du), strict=True):
        close(f"d {name}", got, want, 1e-5)


@forms
@pytest.mark.parametrize("chunk", [16, 64])
def test_mamba2_of_transformers(form: str, chunk: int) -> None:
    """x is the value and Δ scales it; C reads, B writes; the state is [P, N] there; groups of heads share B and C."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    B, T, heads, groups, N, P = 2, 90, 6, 2, 8, 5
    shapes = {"x": (B, T, heads, P), "dt": (B, T, heads), "A": (heads,), "state": (B, heads, P, N)}
    given = {name: torch.randn(shape) for name, shape in shapes.items()}
    given |= {name: torch.randn(B, T, groups, N) for name in ("B", "C")}
    given |= {"dt": given["dt"].abs(), "A": -given["A"].abs()}
    given = {name: t.requires_grad_() for name, t in given.items()}
    x, dt, A = given["x"], given["dt"], given["A"]
    theirs = mamba2_chunk_scan.__wrapped__(
        x, dt, A, given["B"], given["C"], chunk, initial_states=given["state"], return_final_states=True
    )
    output, state = gated_linear(
        given["C"],
        given["B"],
        dt[..., None] * x,
        dt * A,
        scale=1.0,
        state=given["state"].mT,
        return_state=True,
        form=form,
    )
    compare(given, [output, state.mT], [*theirs], 1e-5)
