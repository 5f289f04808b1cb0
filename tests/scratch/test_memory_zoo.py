"""The zoo beside the operators, each the other's oracle: outputs and final states in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lavagna import ops
from lavagna.ops.linear.api import LinearState
from lavagna.scratch.memory import MEMORIES, decays_of_retnet, dpfp, elu1, l2_normalised, run, sum_normalised, zoo

from .support import close, draw

B, T, H, K, V, N = 2, 9, 2, 3, 5, 4


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def vectors(names: str, width: int = K) -> dict[str, np.ndarray]:
    return {name: draw(T, B, H, width, seed=ord(name)) for name in names}


def gate(*shape: int, seed: int = 0) -> np.ndarray:
    return sigmoid(draw(T, B, H, *shape, seed=seed))


QKV = {**vectors("qk"), **vectors("v", V)}
BETA = 2 * gate(seed=1)
S = draw(B, H, K, V, seed=7)


class Case(NamedTuple):
    """A memory's tokens, constants and first state; and the operator's call, which gets them as tensors."""

    tokens: dict[str, np.ndarray]
    operator: Callable[..., Any]
    state: Any = S
    constants: dict[str, np.ndarray] = {}  # noqa: RUF012


def linear(state: Any, q: Any, k: Any, v: Any, log_decay: Any = None, **options: Any) -> Any:
    return ops.gated_linear(q, k, v, log_decay, scale=1.0, state=state, return_state=True, **options)


def normalised(state: Any, q: Any, k: Any, v: Any) -> Any:
    q, k = (torch.nn.functional.elu(x) + 1 for x in (q, k))
    return linear(LinearState(*state), q, k, v, normalizer=True)


def delta(state: Any, q: Any, k: Any, v: Any, beta: Any, alpha: Any = None, **options: Any) -> Any:
    decay = None if alpha is None else alpha.log()
    return ops.gated_delta(q, k, v, beta, decay, scale=1.0, state=state, return_state=True, **options)


def delta_l2(state: Any, q: Any, k: Any, v: Any, beta: Any, alpha: Any = None) -> Any:
    return delta(state, q, k, v, beta, alpha, qk_l2norm=True)


def delta_2021(state: Any, q: Any, k: Any, v: Any, beta: Any) -> Any:
    q, k = (torch.from_numpy(sum_normalised(dpfp(x.numpy()))) for x in (q, k))
    return delta(state, q, k, v, beta)


def mamba2(state: Any, x: Any, dt: Any, B: Any, C: Any, A: Any, D: Any) -> Any:
    o, final = linear(state, C, B, dt[..., None] * x, dt * A)
    return o + D[:, None] * x, final


def rwkv7(state: Any, r: Any, k: Any, v: Any, w: Any, kappa: Any, eta: Any) -> Any:
    return ops.generalized_delta(r, k, v, -kappa, kappa * eta, w.log(), scale=1.0, state=state, return_state=True)


def s6(state: Any, x: Any, dt: Any, B: Any, C: Any, A: Any, D: Any) -> Any:
    return ops.selective_scan(x, dt, A, B, C, D, state=state, return_state=True)


def s4d(state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, D: Any) -> Any:
    return ops.diagonal_ssm(x, dt, A, B, C, D, state=state, return_state=True)


kappa = vectors("κ")["κ"]
kappa /= np.linalg.norm(kappa, axis=-1, keepdims=True)

CASES = {
    "linear_attention": Case(QKV, linear),
    "linear_attention_normalised": Case(QKV, normalised, (S, np.abs(S[..., 0]))),
    "retnet": Case(
        QKV,
        lambda state, q, k, v, gamma: linear(state, q, k, v, gamma.log()),
        constants={"gamma": decays_of_retnet(H)},
    ),
    "mamba2": Case(
        {"x": draw(T, B, H, V), "dt": np.exp(draw(T, B, H)), **vectors("BC", N)},
        mamba2,
        draw(B, H, N, V),
        {"A": -np.exp(draw(H)), "D": draw(H, seed=1)},
    ),
    "gla": Case(QKV | {"alpha": gate(K)}, lambda state, q, k, v, alpha: linear(state, q, k, v, alpha.log())),
    "rwkv6": Case(
        {"r": QKV["q"], "k": QKV["k"], "v": QKV["v"], "w": gate(K)},
        lambda state, r, k, v, w, u: linear(state, r, k, v, w.log(), bonus=u),
        constants={"u": draw(H, K)},
    ),
    "delta_rule": Case(QKV | {"beta": BETA / 3}, delta),
    "deltanet_2021": Case(QKV | {"beta": BETA / 2}, delta_2021, draw(B, H, 6 * K, V)),
    "deltanet_2024": Case(QKV | {"beta": BETA}, delta_l2),
    "gated_deltanet": Case(QKV | {"beta": BETA, "alpha": gate()}, delta_l2),
    "kda": Case(QKV | {"beta": BETA, "alpha": gate(K)}, delta_l2),
    "rwkv7": Case(
        {"r": QKV["q"], "k": QKV["k"], "v": QKV["v"], "w": gate(K), "kappa": kappa, "eta": gate(K, seed=3)}, rwkv7
    ),
    "s6": Case(
        {"x": draw(T, B, 6), "dt": np.exp(draw(T, B, 6, seed=1)), "B": draw(T, B, N), "C": draw(T, B, N, seed=1)},
        s6,
        draw(B, 6, N),
        {"A": -np.exp(draw(6, N)), "D": draw(6)},
    ),
    "s4d": Case(
        {"x": draw(T, B, 6)},
        s4d,
        draw(B, 6, N) + 1j * draw(B, 6, N, seed=1),
        {
            "dt": np.exp(draw(6)),
            "A": -np.exp(draw(6, N)) + 3j * draw(6, N, seed=1),
            "B": draw(6, N, seed=2) + 1j * draw(6, N, seed=3),
            "C": draw(6, N, seed=4) + 1j * draw(6, N, seed=5),
            "D": draw(6, seed=6),
        },
    ),
}


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


def flat(state: Any) -> list[np.ndarray]:
    return [np.asarray(part) for part in state] if isinstance(state, tuple) else [np.asarray(state)]


def test_every_memory_has_a_case() -> None:
    assert CASES.keys() == MEMORIES.keys()


@pytest.mark.parametrize("name", CASES)
def test_equals_the_operator(name: str) -> None:
    case = CASES[name]
    ours, final = run(MEMORIES[name], case.state, *case.tokens.values(), **case.constants)
    first = tuple(map(tensor, case.state)) if isinstance(case.state, tuple) else tensor(case.state)
    batch_first = {key: tensor(np.moveaxis(value, 0, 1)) for key, value in case.tokens.items()}
    o, theirs = case.operator(first, **batch_first, **{key: tensor(value) for key, value in case.constants.items()})
    size = max(1.0, float(np.abs(ours).max()))
    close(ours / size, o.transpose(0, 1) / size)
    for mine, other in zip(flat(final), flat(theirs), strict=True):
        close(mine / size, other / size)


@pytest.mark.parametrize("name", CASES)
def test_cut_anywhere(name: str) -> None:
    case = CASES[name]
    streams = list(case.tokens.values())
    whole, final = run(MEMORIES[name], case.state, *streams, **case.constants)
    first, between = run(MEMORIES[name], case.state, *(x[:4] for x in streams), **case.constants)
    second, end = run(MEMORIES[name], between, *(x[4:] for x in streams), **case.constants)
    close(np.concatenate([first, second]), whole, 0)
    for mine, other in zip(flat(end), flat(final), strict=True):
        close(mine, other, 0)


def test_a_gate_fades_key_channels_and_not_value_channels() -> None:
    memory = np.array([[1.0, 2.0], [3.0, 4.0]])
    zero, alpha = np.zeros(2), np.array([0.5, 0.25])
    faded = np.array([[0.5, 1.0], [0.75, 1.0]])  # rows
    close(zoo.gla(memory, zero, zero, zero, alpha)[0], faded)
    close(zoo.rwkv6(memory, zero, zero, zero, alpha, u=zero)[0], faded)
    close(zoo.rwkv7(memory, zero, zero, zero, alpha, zero, zero)[0], faded)
    close(zoo.kda(memory, zero, zero, zero, np.array(0.0), alpha)[0], faded)


def test_linear_attention_is_a_sum_over_scores() -> None:
    q, k, v = draw(6, 3), draw(6, 3, seed=1), draw(6, 2)
    outputs, _ = run(zoo.linear_attention, np.zeros((3, 2)), q, k, v)
    close(outputs, np.tril(q @ k.T) @ v)
    averages, _ = run(zoo.linear_attention_normalised, (np.zeros((3, 2)), np.zeros(3)), q, k, v)
    scores = np.tril(elu1(q) @ elu1(k).T)
    close(averages, scores / scores.sum(1, keepdims=True) @ v, 1e-9)


def test_a_key_written_again_is_replaced_by_the_delta_rule_and_added_by_the_sum() -> None:
    k, old, new = np.array([0.6, 0.8]), np.array([1.0, 2.0]), np.array([-3.0, 5.0])
    keys, values = np.array([k, k]), np.array([old, new])
    replaced, _ = run(zoo.delta_rule, np.zeros((2, 2)), keys, keys, values, np.ones(2))
    close(replaced, [old, new])
    added, _ = run(zoo.linear_attention, np.zeros((2, 2)), keys, keys, values)
    close(added, [old, old + new])


def test_features() -> None:
    close(elu1(np.array([-1.0, 0.0, 2.0])), [np.exp(-1), 1, 3])
    close(dpfp(np.array([2.0, -3.0]), nu=1), [0, 0, 0, 6])  # r = (2, 0, 0, 3), each with the next one
    close(dpfp(np.array([2.0, -3.0]), nu=3), [0, 0, 0, 6, 0, 0, 0, 0, 6, 0, 0, 0])
    close(sum_normalised(np.array([1.0, 3.0])), [0.25, 0.75], 1e-6)
    close(np.linalg.norm(l2_normalised(draw(4, 5)), axis=-1), np.ones(4), 1e-5)
    for f in (sum_normalised, l2_normalised):
        assert not f(np.zeros(3)).any()


def test_decays_of_retnet() -> None:
    close(decays_of_retnet(3), [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128])
