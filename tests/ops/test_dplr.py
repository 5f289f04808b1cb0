"""generalized_delta by hand, and the recurrences that it contains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.errors import InputError
from lavagna.ops import gated_delta, gated_linear, generalized_delta
from lavagna.ops.dispatch import Result

from ..support.budget import close, close_all

WAYS = {
    "reference": {"impl": "reference", "form": "recurrent"},
    "recurrent": {"impl": "torch", "form": "recurrent"},
    "chunk": {"impl": "torch", "form": "chunk"},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def draw(T: int = 40, *, B: int = 2, H: int = 2, K: int = 16, V: int = 5) -> dict[str, Tensor]:
    """The arguments of a call with the a and b of RWKV-7, in float64."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(B, *shape, dtype=torch.float64)

    kappa = F.normalize(normal(T, H, K), dim=-1)
    return {
        "q": normal(T, H, K),
        "k": normal(T, H, K),
        "v": normal(T, H, V),
        "a": -kappa,
        "b": kappa * torch.rand(B, T, H, K, dtype=torch.float64),
        "log_decay": -torch.rand(B, T, H, K, dtype=torch.float64),
        "state": normal(H, K, V),
    }


def run(given: dict[str, Tensor], way: dict[str, str], **more: Any) -> Result:
    return generalized_delta(**{**given, "return_state": True, **way, **more})


def test_two_tokens_by_hand() -> None:
    """K = V = 2, and two channels of zeros more, so that a chunk may hold both tokens."""

    def rows(*x: list[float], pad: int = 2) -> Tensor:
        return F.pad(torch.tensor(x, dtype=torch.float64), (0, pad))[None, :, None]

    given = {
        "q": rows([1, 1], [2, 4]),
        "k": rows([1, 0], [0, 1]),
        "v": rows([3, -1], [1, 1], pad=0),
        "a": rows([1, 0.5], [0, 1]),
        "b": rows([0, 1], [1, -1]),
        "log_decay": F.pad(torch.tensor([[0.5, 0.25], [1, 0.5]], dtype=torch.float64).log(), (0, 2))[None, :, None],
        "state": F.pad(torch.tensor([[2.0, 0], [0, 4]], dtype=torch.float64), (0, 0, 0, 2))[None, None],
    }
    # aᵀS_0 = (2, 2);  S_1 = ((1, 0), (0, 1)) + ((3, −1), 0) + (0, (2, 2)) = ((4, −1), (2, 3))
    # aᵀS_1 = (2, 3), not the (1, 1.5) of the faded S_1;  S_2 = ((4, −1), (1, 1.5)) + (0, (1, 1)) + ((2, 3), −(2, 3))
    for name, way in WAYS.items():
        output, state = run(given, way, scale=1.0)
        expected = torch.tensor([[[[6, 2]], [[12, 2]]]], dtype=torch.float64)
        close(f"output of {name}", output, expected, 1e-15)
        memory = torch.tensor([[[[6, 2], [0, -0.5]]]], dtype=torch.float64)
        close(f"state of {name}", state[:, :, :2], memory, 1e-15)


@ways
def test_the_default_scale_is_one_over_the_root_of_k(way: dict[str, str]) -> None:
    given = draw()
    close("output", run(given, way).output, run(given, way, scale=0.25).output, 1e-15)


@ways
@pytest.mark.parametrize("name", ["a", "b"])
def test_without_a_or_b_it_is_gated_linear(way: dict[str, str], name: str) -> None:
    given = draw()
    given[name] = torch.zeros_like(given[name])
    less = {n: t for n, t in given.items() if n not in ("a", "b")}
    expected = gated_linear(**less, return_state=True, impl="reference", form="recurrent")
    close_all(run(given, way)._asdict(), expected._asdict(), 1e-12)


@ways
def test_the_gated_delta_rule_is_a_case_of_it(way: dict[str, str]) -> None:
    given, beta = draw(), 2 * torch.rand(2, 40, 2, dtype=torch.float64)
    given["k"] = F.normalize(given["k"], dim=-1)
    less = {n: t for n, t in given.items() if n not in ("a", "b")}
    expected = gated_delta(**less, beta=beta, return_state=True, impl="reference", form="recurrent")
    k, beta = given["k"], beta[..., None]
    given |= {"a": -given["log_decay"].exp() * k, "b": beta * k, "v": beta * given["v"]}
    close_all(run(given, way)._asdict(), expected._asdict(), 1e-12)


@ways
def test_gates_and_erasures_act_on_the_keys_side(way: dict[str, str]) -> None:
    """With K = V the twin that fades value channels has the same shapes and another answer."""
    given = draw(V=16)
    output = run(given, way, scale=1.0).output

    def literal(fade: str) -> Tensor:
        S, rows = given["state"], []
        for t in range(40):
            q, k, v, a, b, decay = (given[n][:, t] for n in ("q", "k", "v", "a", "b", "log_decay"))
            read = torch.einsum("bhkv,bhk->bhv", S, a)
            S = torch.einsum(fade, S, decay.exp())
            S = S + torch.einsum("bhk,bhv->bhkv", k, v) + torch.einsum("bhk,bhv->bhkv", b, read)
            rows.append(torch.einsum("bhkv,bhk->bhv", S, q))
        return torch.stack(rows, 1)

    close("output", output, literal("bhkv,bhk->bhkv"), 1e-12)
    assert (output - literal("bhkv,bhv->bhkv")).abs().max() > 0.1 * output.abs().max()


@pytest.mark.parametrize("chunk_size", [0, -4, 3, 48])
def test_a_chunk_is_a_power_of_two(chunk_size: int) -> None:
    with pytest.raises(InputError, match=f"power of two, got {chunk_size}"):
        run(draw(), WAYS["chunk"], chunk_size=chunk_size)
