"""What is special to selective_scan: numbers by hand, groups, optional parts, limits, memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lavagna.errors import InputError, ShapeError
from lavagna.ops import selective_scan
from lavagna.ops.selective import chunk as chunk_form
from lavagna.ops.selective.api import TABLE

from ..support.budget import close, close_all

ROWS = [row for row in TABLE.rows if not TABLE.reasons(row)]
each_row = pytest.mark.parametrize(
    "choice",
    [{"form": r.form, "impl": r.impl} for r in ROWS],
    ids=[f"{r.impl}.{r.form}" for r in ROWS],
)
LN2 = math.log(2)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(B: int = 2, T: int = 9, D: int = 4, N: int = 3, kind: str = "timed", rows: int | None = None) -> dict:
    """Arguments in float64, every optional one present."""
    shape = {"timed": (B, T, N), "grouped": (B, T, 2, N), "constant": (D, N)}[kind]
    normal = {"x": (B, T, D), "dt": (B, T, D), "B": shape, "C": shape, "D": (D,), "z": (B, T, D), "dt_bias": (D,)}
    tensors = {name: torch.randn(size, dtype=torch.float64) for name, size in normal.items()}
    tensors["A"] = -torch.rand(D, N, dtype=torch.float64) * 2
    tensors["state"] = torch.randn(B if rows is None else rows, D, N, dtype=torch.float64)
    return tensors


def answer(tensors: dict, weights: tuple[Tensor, Tensor] | None = None, **options: Any) -> dict[str, Tensor]:
    """Output, state and the gradients of a random loss on both."""
    leaves = {name: t.detach().clone().requires_grad_() for name, t in tensors.items() if t is not None}
    y, h = selective_scan(**{**tensors, **leaves}, return_state=True, **options)
    generator = torch.Generator().manual_seed(1)
    loss = sum((t * torch.randn(t.shape, dtype=t.dtype, generator=generator)).sum() for t in (y, h))
    found = torch.autograd.grad(loss, list(leaves.values()))
    return {"y": y.detach(), "h": h.detach()} | {f"d{n}": g for n, g in zip(leaves, found, strict=True)}


# By hand ---------------------------------------------------------------------------------------------------


@each_row
def test_two_tokens_by_hand(choice: dict) -> None:
    """Decays (1/2, 1/4), then (1/4, 1/16)."""
    tensors = {
        "x": f64([[[2.0], [3.0]]]),
        "dt": f64([[[1.0], [2.0]]]),
        "A": f64([[-LN2, -2 * LN2]]),
        "B": f64([[[1.0, 3.0], [2.0, -1.0]]]),
        "C": f64([[[1.0, 1.0], [1.0, 2.0]]]),
        "state": f64([[[4.0, 8.0]]]),
    }
    leaves = {name: t.requires_grad_() for name, t in tensors.items()}
    y, h = selective_scan(**leaves, return_state=True, **choice)
    # h_1 = (4/2 + 1·1·2, 8/4 + 1·3·2) = (4, 8);  h_2 = (4/4 + 2·2·3, 8/16 − 2·1·3) = (13, −5.5)
    close("y", y, f64([[[12.0], [13.0 - 2 * 5.5]]]), 1e-15)
    close("h", h, f64([[[13.0, -5.5]]]), 1e-15)

    found = dict(zip(leaves, torch.autograd.grad(y[0, 1, 0], list(leaves.values())), strict=True))
    exact = {
        "x": [[[1 * (1 / 4 + 3 / 8)], [2 * (2 - 2)]]],  # g_2 = C_2 = (1, 2), g_1 = (1/4, 2/16)
        "dt": [[[2 * (1 / 4 + 3 / 8) - LN2 * (2 / 4 + 2 * 2 / 8)], [3 * (2 - 2) - LN2 * (1 + 2 * 1)]]],
        "A": [[1 * 2 / 4 + 2 * 1, 1 * 2 / 8 + 2 * 1]],  # Δ_1 a_1 h_0 g_1 + Δ_2 a_2 h_1 g_2
        "B": [[[2 / 4, 2 / 8], [6.0, 12.0]]],
        "C": [[[0.0, 0.0], [13.0, -5.5]]],
        "state": [[[1 / 8, 2 / 64]]],
    }
    close_all(found, {name: f64(values) for name, values in exact.items()}, 1e-14)


@each_row
def test_skip_then_gate(choice: dict) -> None:
    """y = (C h + D x) · silu(z), and silu(ln 3) = ln 3 · 3/4."""
    z = f64([[[math.log(3.0)], [0.0]]])
    one = torch.ones(1, 2, 1, dtype=torch.float64)
    y, _ = selective_scan(one, one, f64([[-LN2]]), one, one, D=f64([10.0]), z=z, **choice)
    close("y", y, f64([[[11 * math.log(3.0) * 0.75], [0.0]]]), 1e-15)


@each_row
def test_step_size_is_biased_then_softplus_then_clamped(choice: dict) -> None:
    """softplus(0) = ln 2; with A = 0 and B = x = 1 the state is the sum of the steps."""
    zeros = torch.zeros(1, 3, 1, dtype=torch.float64)
    ones = zeros + 1

    def steps(dt: Tensor, **options: Any) -> list[float]:
        y, _ = selective_scan(ones, dt, f64([[0.0]]), ones, ones, **options, **choice)
        return y.flatten().diff(prepend=f64([0.0])).tolist()

    bias = f64([-1.0])
    dt = f64([[[1.0], [25.0], [1.5]]])
    assert steps(dt, dt_bias=bias) == [0.0, 24.0, 0.5]
    # ln(e^24 + 1) = 24 + 3.775e-11: a softplus that is linear from 20 on has no such term
    assert steps(dt, dt_bias=bias, dt_softplus=True) == pytest.approx(
        [LN2, 24 + math.log1p(math.exp(-24)), math.log1p(math.exp(0.5))], abs=1e-14
    )
    assert steps(dt, dt_bias=bias, dt_limit=(0.25, 2.0)) == [0.25, 2.0, 0.5]
    assert steps(dt, dt_bias=bias, dt_softplus=True, dt_limit=(0.7, 0.9)) == pytest.approx([0.7, 0.9, 0.9])
    assert steps(dt, dt_limit=(0.0, math.inf)) == [1.0, 25.0, 1.5]


@each_row
@pytest.mark.parametrize("kind", ["timed", "grouped", "constant"])
def test_equals_the_formula_written_number_by_number(choice: dict, kind: str) -> None:
    """One scalar at a time, channels before time as in Mamba's own signature: u, Δ, z [B,D,L], B, C [B,G,N,L]."""
    given = draw(kind=kind)
    n = {name: t.numpy() for name, t in given.items()}
    u, delta, z = (n[name].transpose(0, 2, 1) for name in ("x", "dt", "z"))
    batch, channels, length = u.shape
    B, C = (n[name] if kind == "constant" else np.moveaxis(n[name], 1, -1) for name in ("B", "C"))
    out, h = np.zeros_like(u), n["state"].copy()
    for b, d, t in itertools.product(range(batch), range(channels), range(length)):
        step = math.log1p(math.exp(delta[b, d, t] + n["dt_bias"][d]))
        total = n["D"][d] * u[b, d, t]
        for i in range(h.shape[2]):
            at = {"timed": (b, i, t), "grouped": (b, 0 if d < 2 else 1, i, t), "constant": (d, i)}[kind]
            h[b, d, i] = math.exp(step * n["A"][d, i]) * h[b, d, i] + step * B[at] * u[b, d, t]
            total += C[at] * h[b, d, i]
        out[b, d, t] = total * z[b, d, t] / (1 + math.exp(-z[b, d, t]))
    y, state = selective_scan(**given, dt_softplus=True, return_state=True, **choice)
    close("y", y, torch.from_numpy(out.transpose(0, 2, 1).copy()), 1e-13)
    close("h", state, torch.from_numpy(h), 1e-13)


@each_row
def test_channels_have_their_neighbours_group(choice: dict) -> None:
    """Four channels, two groups: the first two read the first group, not every other one."""
    ones = torch.ones(1, 1, 4)
    B, C = torch.ones(1, 1, 2, 1), torch.tensor([3.0, 5.0]).view(1, 1, 2, 1)
    A = torch.zeros(4, 1)
    assert selective_scan(ones, ones, A, B, C, **choice).output.tolist() == [[[3.0, 3.0, 5.0, 5.0]]]
    assert selective_scan(ones, ones, A, C, B, **choice).output.tolist() == [[[3.0, 3.0, 5.0, 5.0]]]


# Optional parts, limits, packing, dtypes -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timed", "grouped", "constant"])
@pytest.mark.parametrize("missing", list(itertools.product([False, True], repeat=4)), ids=str)
def test_step_equals_whole_for_every_combination_of_parts(missing: tuple[bool, ...], kind: str) -> None:
    given = draw(kind=kind)
    for name, gone in zip(("D", "z", "dt_bias", "state"), missing, strict=True):
        if gone:
            given[name] = None
    options = {"dt_softplus": True, "dt_limit": (0.4, 1.2)}
    whole = selective_scan(**given, **options, return_state=True, form="chunk", chunk_size=4)
    names = [name for name in ("x", "dt", "z", *("BC" if kind != "constant" else "")) if given[name] is not None]
    outputs, state = [], given["state"]
    for t in range(9):
        token = {name: given[name][:, t : t + 1] for name in names}
        y, state = selective_scan(**{**given, **token, "state": state}, **options, return_state=True)
        outputs.append(y)
    close("y", torch.cat(outputs, 1), whole.output, 1e-13)
    close("h", state, whole.state, 1e-13)


@each_row
@pytest.mark.parametrize("kind", ["timed", "grouped"])
def test_a_lower_limit_does_not_reach_the_padding_of_packed_sequences(choice: dict, kind: str) -> None:
    """Lengths 7, 5 and 4 share a padded group; gradients of B and C come from each sequence's own decays."""
    bounds = [0, 7, 7, 12, 16]
    given = draw(B=1, T=16, kind=kind, rows=4)
    options = {"dt_softplus": True, "dt_limit": (0.5, 5.0)}
    got = answer(given, **options, cu_seqlens=torch.tensor(bounds), **choice)

    leaves = {name: t.clone().requires_grad_() for name, t in given.items()}
    timed = ("x", "dt", "B", "C", "z")
    alone = [
        selective_scan(
            **{**leaves, **{n: leaves[n][:, a:b] for n in timed}, "state": leaves["state"][m : m + 1]},
            **options,
            return_state=True,
            impl="reference",
        )
        for m, (a, b) in enumerate(itertools.pairwise(bounds))
    ]
    y, h = torch.cat([r.output for r in alone], 1), torch.cat([r.state for r in alone])
    generator = torch.Generator().manual_seed(1)
    loss = sum((t * torch.randn(t.shape, dtype=t.dtype, generator=generator)).sum() for t in (y, h))
    found = torch.autograd.grad(loss, list(leaves.values()))
    exact = {"y": y.detach(), "h": h.detach()} | {f"d{n}": g for n, g in zip(leaves, found, strict=True)}
    close_all(got, exact, 1e-12)


@each_row
def test_the_state_is_not_rounded_to_the_models_dtype(choice: dict) -> None:
    """Steps of 1/256 add up to 2; a bfloat16 state would stop at 1."""
    one = torch.ones(1, 1, 1, dtype=torch.bfloat16)
    state = None
    for _ in range(512):
        y, state = selective_scan(
            one, one / 256, torch.zeros(1, 1, dtype=torch.bfloat16), one, one, state=state, return_state=True, **choice
        )
    assert y.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert state.item() == 2.0


@each_row
def test_strong_decay_beside_weak_decay(choice: dict) -> None:
    """Products of −1e4 and −0.1: the weak one keeps every digit, the strong one forgets at once."""
    T = 200
    A = torch.tensor([[-0.1, -1e4], [-1e4, -0.1]]).requires_grad_()
    ones = torch.ones(1, T, 2)
    dt = ones.clone().requires_grad_()
    y, h = selective_scan(ones, dt, A, torch.ones(1, T, 2), torch.ones(1, T, 2), return_state=True, **choice)
    sums = (1 - math.exp(-0.1) ** T) / (1 - math.exp(-0.1))
    close("h", h.double(), f64([[[sums, 1.0], [1.0, sums]]]), 1e-6)
    gradient = torch.autograd.grad(y.sum(), [A, dt])
    assert all(torch.isfinite(g).all() for g in gradient)
    assert gradient[0][0, 1] == gradient[0][1, 0] == 0.0
    assert gradient[0][0, 0] > 0


# The chunk form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["timed", "grouped", "constant"])
@pytest.mark.parametrize("chunk_size", [1, 7, 16, 17, 1000])
def test_any_chunk_size_gives_the_same(kind: str, chunk_size: int) -> None:
    given = draw(T=33, kind=kind)
    got = answer(given, dt_softplus=True, form="chunk", chunk_size=chunk_size)
    close_all(got, answer(given, dt_softplus=True, impl="reference"), 1e-12)


@pytest.mark.parametrize("kind", ["timed", "grouped", "constant"])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_batch_in_blocks_of_rows_gives_the_same(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = draw(B=5, T=11, kind=kind)
    whole = answer(given, dt_softplus=True, form="chunk", impl="torch", chunk_size=4)
    calls = []
    run = chunk_form._Chunk.run
    monkeypatch.setattr(chunk_form._Chunk, "run", lambda work, *a: calls.append(work.states.shape[1]) or run(work, *a))
    monkeypatch.setattr(chunk_form, "CACHED", rows * 4 * given["A"].numel())
    close_all(answer(given, dt_softplus=True, form="chunk", impl="torch", chunk_size=4), whole, 1e-14)
    assert max(calls) == rows


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that any operator makes while this mode is on."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.nbytes = max(self.nbytes, tensor.untyped_storage().nbytes(), tensor.nbytes)
        return result


def measured(run: Callable[[], Tensor]) -> tuple[int, int]:
    """Bytes of the largest tensor made in the forward and backward pass, and of all that is kept in between."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with Largest() as mode:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            y = run()
        y.sum().backward()
    return mode.nbytes, sum(kept.values())


@pytest.mark.parametrize("kind", ["timed", "grouped", "constant"])
def test_nothing_as_large_as_all_states_is_ever_made(kind: str) -> None:
    T, D, N = 256, 16, 32
    given = {name: t.float().requires_grad_() for name, t in draw(B=2, T=T, D=D, N=N, kind=kind).items()}
    chunk = chunk_form.CHUNK
    states = 2 * T * D * N * 4
    largest, kept = measured(lambda: selective_scan(**given, dt_softplus=True, form="chunk", impl="torch").output)
    assert largest <= states * (chunk + 1) / T  # the states of one chunk
    # Boundaries, inputs, and what stands around the scan: tensors of [B, T, D], 32 times less than the states.
    inputs = sum(t.nbytes for t in given.values())
    assert kept <= states / chunk + inputs + 8 * given["x"].nbytes
    assert kept < states / 2

    def plain() -> Tensor:
        decay = torch.exp(given["dt"].unsqueeze(-1) * given["A"])
        return decay.cumprod(1).sum(-1)

    largest, kept = measured(plain)  # the measure sees what it should
    assert largest >= states
    assert kept >= states


def test_without_gradients_no_boundary_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {name: t.requires_grad_() for name, t in draw(T=64).items()}
    kept: list[object] = []
    forward = chunk_form._forward
    monkeypatch.setattr(chunk_form, "_forward", lambda *a: kept.append(a[7:]) or forward(*a))
    with torch.no_grad():
        selective_scan(**given, form="chunk", impl="torch")
    selective_scan(**given, form="chunk", impl="torch")
    assert [len(k) for k in kept] == [0, 1]


def test_the_second_derivative() -> None:
    """The chunk form says that it has none; the recurrent form has it."""
    given = {name: t.requires_grad_() for name, t in draw(B=1, T=4, D=2, N=2).items()}
    y = selective_scan(**given, dt_softplus=True, form="chunk", impl="torch").output
    (first,) = torch.autograd.grad(y.sum(), given["x"], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()

    def recurrent(*tensors: Tensor) -> Tensor:
        given_now = dict(zip(given, tensors, strict=True))
        return selective_scan(**given_now, dt_softplus=True, form="recurrent", impl="torch").output

    assert torch.autograd.gradgradcheck(recurrent, tuple(given.values()), fast_mode=True)


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [(2.0, 1.0), (-1.0, 1.0), (math.nan, 1.0), 0.5, (0.1,), ("a", "b")], ids=str)
def test_a_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(InputError, match=r"dt_limit must be \(low, high\)"):
        selective_scan(**draw(), dt_limit=limit)


def test_channels_that_groups_do_not_divide() -> None:
    given = draw(D=4)
    given["B"] = torch.randn(2, 9, 3, 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match="D=4 channels must be a multiple of the groups of B, got G=3"):
        selective_scan(**given)
    given["B"] = torch.randn(2, 9, 0, 3, dtype=torch.float64)
    with pytest.raises(ShapeError, match="got G=0"):
        selective_scan(**given)


def test_complex_parameters() -> None:
    given = draw()
    given["A"] = given["A"].to(torch.complex128)
    with pytest.raises(ShapeError, match=r"A must have a real floating dtype, got torch\.complex128"):
        selective_scan(**given)
