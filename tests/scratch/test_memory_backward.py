"""The memories' gradients by hand, against differences and against the operators' gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lavagna import ops
from lavagna.scratch.memory import delta_backward, gate_backward, run, sum_backward, zoo

from .support import close, draw, gradients_agree

B, T, H, K, V = 2, 6, 2, 3, 4


def scalar_gate(S: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, alpha: np.ndarray) -> Any:
    return zoo.retnet(S, q, k, v, gamma=alpha)


class Case(NamedTuple):
    step: Callable[..., Any]
    backward: Callable[..., Any]
    extra: dict[str, np.ndarray]  # what the memory reads besides q, k, v
    operator: Callable[..., Any]


CASES = {
    "sum": Case(zoo.linear_attention, sum_backward, {}, lambda q, k, v, **o: ops.gated_linear(q, k, v, **o)),
    "gate": Case(
        scalar_gate,
        gate_backward,
        {"alpha": 1 / (1 + np.exp(-draw(T, B, H)))},
        lambda q, k, v, alpha, **o: ops.gated_linear(q, k, v, alpha.log(), **o),
    ),
    "delta": Case(
        zoo.delta_rule,
        delta_backward,
        {"beta": 1 / (1 + np.exp(-draw(T, B, H)))},
        lambda q, k, v, beta, **o: ops.gated_delta(q, k, v, beta, **o),
    ),
}


def arguments(case: Case) -> dict[str, np.ndarray]:
    qkv = {"q": draw(T, B, H, K), "k": draw(T, B, H, K, seed=1), "v": draw(T, B, H, V)}
    return {"S": draw(B, H, K, V), **qkv, **case.extra}


dO, dS = draw(T, B, H, V, seed=8), draw(B, H, K, V, seed=8)


def by_hand(case: Case, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    *gradients, first = case.backward(dO, dS, *given.values())
    return {"S": first, **dict(zip(list(given)[1:], gradients, strict=True))}


@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str) -> None:
    case = CASES[name]
    given = arguments(case)

    def loss() -> float:
        outputs, final = run(case.step, *given.values())
        return float((outputs * dO).sum() + (final * dS).sum())

    gradients_agree(loss, given, by_hand(case, given))


@pytest.mark.parametrize("name", CASES)
def test_equals_the_operators_gradients(name: str) -> None:
    case = CASES[name]
    given = arguments(case)
    leaves = {key: torch.from_numpy(value.copy()).requires_grad_() for key, value in given.items()}
    batch_first = {key: x.transpose(0, 1) for key, x in leaves.items() if key != "S"}
    o, final = case.operator(**batch_first, scale=1.0, state=leaves["S"], return_state=True)
    torch.autograd.backward([o, final], [torch.from_numpy(dO).transpose(0, 1), torch.from_numpy(dS)])
    for key, gradient in by_hand(case, given).items():
        close(gradient, leaves[key].grad, 1e-11)


def test_a_sum_is_a_gate_of_one() -> None:
    given = arguments(CASES["sum"])
    ones = np.ones((T, B, H))
    dQ, dK, dV, _, first = gate_backward(dO, dS, *given.values(), ones)
    for ours, other in zip((dQ, dK, dV, first), sum_backward(dO, dS, *given.values()), strict=True):
        close(ours, other)
