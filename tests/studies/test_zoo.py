"""What the table of the zoo says of each memory, by the public operators in float64; and that what is drawn is true."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError
from lavagna.mixers.registry import MIXERS, MLPS, mixer_class
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.ops import attention, diagonal_ssm, gated_delta, gated_linear, generalized_delta, selective_scan
from lavagna.ops.dispatch import Table
from lavagna.studies.zoo import draw, lines, record, shade, told, transitions, view

K, V = 5, 3
TOKENS = torch.tensor(list(b"lavagna"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def key(norm: float = 1.0) -> Tensor:
    k = torch.randn(K, dtype=torch.float64)
    return k * norm / k.norm()


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def delta(state: Tensor, k: Tensor, v: Tensor, beta: float, decay: Tensor | float | None = None) -> Tensor:
    """S after one token of gated_delta: state [K, V], k [K], v [V], decay α (a number, or [K]) -> [K, V]."""
    log_decay = None
    if decay is not None:
        log_decay = torch.as_tensor(decay, dtype=torch.float64).log()[None, None, None]
    k, v = k[None, None, None], v[None, None, None]
    strength = torch.tensor([[[beta]]], dtype=torch.float64)
    return gated_delta(k, k, v, strength, log_decay, state=state[None, None], return_state=True).state[0, 0]


def linear(state: Tensor, k: Tensor, v: Tensor, decay: Tensor | float | None = None) -> Tensor:
    """S after one token of gated_linear."""
    log_decay = None
    if decay is not None:
        log_decay = torch.as_tensor(decay, dtype=torch.float64).log()[None, None, None]
    k, v = k[None, None, None], v[None, None, None]
    return gated_linear(k, k, v, log_decay, state=state[None, None], return_state=True).state[0, 0]


def transition(k: Tensor, beta: float, decay: Tensor | float | None = None) -> Tensor:
    """The matrix [K, K] that carries S on: what becomes of the identity where zero values are written."""
    return delta(torch.eye(K, dtype=torch.float64), k, torch.zeros(K, dtype=torch.float64), beta, decay)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# --- the table ------------------------------------------------------------------------------------------------


def test_every_mixer_says_how_its_memory_survives() -> None:
    assert [line.mixer for line in lines()] == list(MIXERS)
    for line in lines():
        own = vars(mixer_class(line.mixer))  # not what a parent says of itself
        assert own["recurrence"] == line.recurrence != ""
        assert own["survives"] == line.survives != ""
        assert MIXERS[line.mixer].startswith(f"{line.module}:")
    for name in MLPS:
        assert not mixer_class(name, MLPS, "mlp").recurrence


# --- the erase ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_eigenvalues_are_one_but_for_one_minus_beta_k_squared(beta: float) -> None:
    for norm in (0.5, 1.0, 1.3):
        found = torch.linalg.eigvalsh(transition(key(norm), beta))
        expected = torch.tensor([1.0] * (K - 1) + [1 - beta * norm**2], dtype=torch.float64).sort().values
        same(found, expected)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.7, 2.0])
def test_its_spectral_norm_is_one_where_there_are_other_directions(beta: float) -> None:
    same(torch.linalg.matrix_norm(transition(key(), beta), 2), torch.tensor(1.0, dtype=torch.float64))


def test_with_one_channel_its_spectral_norm_is_less() -> None:
    one = torch.ones(1, dtype=torch.float64)
    same(delta(one[None], one, torch.zeros(1, dtype=torch.float64), 0.7), 0.3 * one[None])


def test_at_one_and_unit_keys_it_is_a_projector() -> None:
    k = key()
    P = transition(k, 1.0)
    same(P @ P, P)
    same(P, P.T)
    same(P @ k, torch.zeros_like(k))
    assert round(float(P.trace())) == K - 1
    short = transition(key(0.5), 1.0)
    assert not torch.allclose(short @ short, short)


def test_at_two_it_oscillates_and_beyond_it_diverges() -> None:
    def held(strength: float, norm: float) -> list[float]:
        """What k holds, token after token, of the same key and values of zero; at first 1."""
        k = key(norm)
        state, out = torch.outer(k, torch.ones(1, dtype=torch.float64)) / norm**2, []
        for _ in range(40):
            state = delta(state, k, torch.zeros(1, dtype=torch.float64), strength / norm**2)
            out.append(float(state[:, 0] @ k))
        return out

    for norm in (0.7, 1.0):
        assert held(2.0, norm) == pytest.approx([-1.0, 1.0] * 20, abs=1e-12)
        beyond = held(2.1, norm)
        assert beyond == pytest.approx([(-1.1) ** n for n in range(1, 41)], rel=1e-10)
        assert abs(beyond[-1]) > 40
        assert abs(held(1.9, norm)[-1]) < 0.02


# --- nesting --------------------------------------------------------------------------------------------------


def test_without_fading_gated_deltanet_is_deltanet() -> None:
    state, k, v = random(K, V), key(), random(V)
    plain = delta(state, k, v, 0.6)
    same(delta(state, k, v, 0.6, 1.0), plain)
    distances = [float((delta(state, k, v, 0.6, 1 - eps) - plain).norm()) for eps in (1e-2, 1e-4, 1e-6)]
    for near, nearer in pairwise(distances):
        assert nearer == pytest.approx(near / 100, rel=0.05)


@pytest.mark.parametrize("step", [lambda *a: delta(a[0], a[1], a[2], 0.6, a[3]), linear], ids=["delta", "linear"])
def test_equal_gates_of_the_channels_are_the_scalar_gate(step: Callable[..., Tensor]) -> None:
    state, k, v = random(K, V), key(), random(V)
    equal = step(state, k, v, torch.full((K,), 0.8, dtype=torch.float64))
    same(equal, step(state, k, v, 0.8))
    uneven = torch.tensor([0.8] * (K - 1) + [0.7], dtype=torch.float64)
    assert not torch.allclose(step(state, k, v, uneven), equal)


def test_a_write_weighs_the_product_of_the_gates_since() -> None:
    k, v, nothing = key(), random(V), torch.zeros(V, dtype=torch.float64)
    gates = [0.9, 0.5, 0.99, 0.7]
    state = linear(torch.zeros(K, V, dtype=torch.float64), k, v, 0.3)
    for gate in gates:
        state = linear(state, key(), nothing, gate)
    same(state, math.prod(gates) * torch.outer(k, v))

    state = torch.outer(k, v)
    for _ in range(10):
        state = linear(state, key(), nothing, 0.9)
    weight = float((state / torch.outer(k, v)).mean())
    assert weight == pytest.approx(0.9**10, rel=1e-12)
    assert round(weight, 2) == 0.35


def test_scalar_decay_that_writes_is_no_special_case_of_the_delta_rule() -> None:
    state, k, v = random(K, V), key(), random(V)
    same(delta(state, k, v, 0.0, 0.8), 0.8 * state)  # at β = 0 it decays, and writes nothing
    wanted = linear(state, k, v, 0.8)
    same(wanted, 0.8 * state + torch.outer(k, v))
    # Both are lines through one point in β: their nearest point is still away from the decay that writes.
    start = delta(state, k, v, 0.0, 0.8)
    direction = delta(state, k, v, 1.0, 0.8) - start
    beta = float((direction * (wanted - start)).sum() / direction.square().sum())
    assert (delta(state, k, v, beta, 0.8) - wanted).norm() > 0.1


# --- online regression ------------------------------------------------------------------------------------------


def loss(state: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """L(S) = ½‖Sᵀk − v‖²."""
    return 0.5 * (state.T @ k - v).square().sum()


def descended(state: Tensor, rate: float, objective: Callable[[Tensor], Tensor]) -> Tensor:
    """S − rate · ∂L/∂S, by autograd."""
    leaf = state.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(objective(leaf), leaf)
    return state - rate * gradient


@pytest.mark.parametrize(("beta", "expected"), [(0.5, 8.5), (1.0, 10.0), (0.0, 7.0)])
def test_from_seven_towards_ten(beta: float, expected: float) -> None:
    k = key()
    state = torch.outer(k, torch.tensor([7.0], dtype=torch.float64))
    after = delta(state, k, torch.tensor([10.0], dtype=torch.float64), beta)
    assert float(after[:, 0] @ k) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0, 1.5])
def test_the_delta_rule_is_the_exact_gradient_step(beta: float) -> None:
    state, k, v = random(K, V), key(1.2), random(V)
    same(delta(state, k, v, beta), descended(state, beta, lambda S: loss(S, k, v)))


@pytest.mark.parametrize("decay", [0.7, torch.linspace(0.2, 0.9, K, dtype=torch.float64)], ids=["scalar", "channels"])
def test_the_gated_rule_is_that_step_at_the_decayed_state(decay: Any) -> None:
    state, k, v = random(K, V), key(1.2), random(V)
    decayed = torch.as_tensor(decay, dtype=torch.float64).expand(K)[:, None] * state
    same(delta(state, k, v, 0.6, decay), descended(decayed, 0.6, lambda S: loss(S, k, v)))
    undecayed = descended(state, 0.6, lambda S: loss(S, k, v))
    assert not torch.allclose(delta(state, k, v, 0.6, decay), undecayed)


def test_accumulation_is_the_step_on_the_linearised_loss() -> None:
    state, k, v = random(K, V), key(1.2), random(V)
    origin = torch.zeros_like(state).requires_grad_()
    (slope,) = torch.autograd.grad(loss(origin, k, v), origin)  # the loss's linear part, at S = 0
    same(linear(state, k, v), descended(state, 1.0, lambda S: (slope * S).sum()))


def test_it_is_the_exact_step_only_where_the_key_holds_nothing_and_beta_is_one() -> None:
    k, v = key(), random(V)
    empty = random(K, V)
    empty = empty - torch.outer(k, empty.T @ k)  # Sᵀk = 0
    exact = delta(empty, k, v, 1.0)
    same(exact, descended(empty, 1.0, lambda S: loss(S, k, v)))
    same(linear(empty, k, v), exact)
    full = empty + torch.outer(k, random(V))
    assert not torch.allclose(linear(full, k, v), delta(full, k, v, 1.0))
    assert not torch.allclose(linear(empty, k, v), delta(empty, k, v, 0.9))


def test_with_orthonormal_keys_and_half_the_rate_they_differ_by_two() -> None:
    keys = torch.linalg.qr(random(K, K)).Q
    accumulated = corrected = torch.zeros(K, V, dtype=torch.float64)
    for k in keys:
        v = random(V)
        accumulated, corrected = linear(accumulated, k, v), delta(corrected, k, v, 0.5)
    same(accumulated, 2 * corrected)
    assert corrected.norm() > 0.1


# --- what is drawn ----------------------------------------------------------------------------------------------


def read_off(call: Callable[[], Any]) -> Tensor:
    with record() as calls:
        call()
    (recorded,) = calls
    return transitions(recorded)


def test_transitions_of_the_delta_rules() -> None:
    T, H, HV = 3, 2, 4
    k, v = torch.nn.functional.normalize(random(1, T, H, K), dim=-1), random(1, T, HV, V)
    beta, gates = torch.rand(1, T, HV, dtype=torch.float64), torch.rand(1, T, HV, K, dtype=torch.float64)
    found = read_off(lambda: gated_delta(k, k, v, beta, gates.log(), return_state=True))
    k = k.repeat_interleave(HV // H, 2)
    erase = torch.eye(K, dtype=torch.float64) - beta[..., None, None] * k[..., :, None] * k[..., None, :]
    same(found, (erase * gates[..., None, :])[0])

    a, b = random(1, T, HV, K), random(1, T, HV, K)
    found = read_off(lambda: generalized_delta(k, k, v, a, b, gates.log(), return_state=True))
    same(found, (torch.diag_embed(gates) + b[..., :, None] * a[..., None, :])[0])


@pytest.mark.parametrize("normalizer", [False, True])
def test_transitions_of_fading_memories(normalizer: bool) -> None:
    T, H = 3, 2
    k, v = torch.rand(1, T, H, K, dtype=torch.float64), random(1, T, H, V)
    gates = torch.rand(1, T, H, dtype=torch.float64)
    found = read_off(lambda: gated_linear(k, k, v, gates.log(), normalizer=normalizer, return_state=True))
    same(found, gates[0, :, :, None, None] * torch.eye(K, dtype=torch.float64))
    found = read_off(lambda: gated_linear(k, k, v, gates[0, 0].log(), normalizer=normalizer, return_state=True))
    same(found, (gates[0, 0, :, None, None] * torch.eye(K, dtype=torch.float64)).expand(T, H, K, K))


def test_transitions_of_state_space_models() -> None:
    T, D, N = 3, 2, 4
    x, dt, A = random(1, T, D), torch.rand(1, T, D, dtype=torch.float64), -torch.rand(D, N, dtype=torch.float64)
    B = random(1, T, N)
    found = read_off(lambda: selective_scan(x, dt, A, B, B, return_state=True))
    same(found, torch.diag_embed((dt[0, :, :, None] * A).exp()))
    turning = torch.complex(A, random(D, N))
    found = read_off(lambda: diagonal_ssm(x, dt[0, 0], turning, turning, turning, return_state=True))
    same(found, torch.diag_embed((dt[0, 0, :, None] * turning).exp()).expand(T, D, N, N))


def test_recording_ends_with_its_block_and_changes_no_result() -> None:
    run = Table.run
    q = random(1, 2, 1, K)
    expected = attention(q, q, q).output
    with record() as calls:
        assert torch.equal(attention(q, q, q).output, expected)
    assert [recorded.table.op for recorded in calls] == ["attention"]
    with pytest.raises(InputError), record():
        attention(q, q, q, window=0)
    assert Table.run is run


def test_views_of_fresh_models_have_every_mixer() -> None:
    views = view(TOKENS)
    assert [shown.mixer for shown in views] == list(MIXERS)
    for shown in views:
        assert len(shown.drawn) == len(TOKENS)
        if shown.mixer == "attention":
            assert [keys.shape[1] for keys in shown.cache] == list(range(1, len(TOKENS) + 1))
            assert torch.equal(shown.cache[-1][:, :3], shown.cache[2])
            assert told(shown, 2) == "3 kept"
        else:
            for matrix in shown.matrices:
                assert torch.linalg.eigvals(matrix).abs().max() <= 1 + 1e-12
    by_name = {shown.mixer: shown.matrices for shown in views}
    same(by_name["linear_attention"][0], torch.eye(len(by_name["linear_attention"][0]), dtype=torch.float64))
    retnet = by_name["retnet"][3].float()  # the mixer's gates have the digits of its parameters
    torch.testing.assert_close(retnet, (1 - 2**-5) * torch.eye(len(retnet)))
    eigenvalues = torch.linalg.eigvalsh(by_name["deltanet"][0])
    assert 0 < eigenvalues[0] < 0.9
    same(eigenvalues[1:], torch.ones_like(eigenvalues[1:]))


def test_the_keys_are_the_models_own() -> None:
    """In the second layer of a trained model, the erased direction is the key that its mixer made of the text."""
    config = LanguageModelConfig(vocab_size=257, width=16, layers=("attention", "deltanet"))
    model = LanguageModel(config, seed=3).eval()
    shown = view(TOKENS, model)
    assert [found.mixer for found in shown] == ["attention", "deltanet"]
    with torch.no_grad():
        mixer, kept = model.stack()[1].mixer, []
        hook = mixer.register_forward_pre_hook(lambda _, arguments: kept.append(arguments[0]))
        model(TOKENS[None])
        hook.remove()
        (x,) = kept
        qkv, _ = mixer.conv(mixer.qkv_proj(x), None, None)
        k = qkv.split(mixer.sizes, -1)[1].unflatten(-1, (mixer.heads, mixer.key_dim))[0, :, 0].double()
        beta = mixer.b_proj(x).sigmoid()[0, :, 0].double()
    k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    for t, matrix in enumerate(shown[1].matrices):
        expected = torch.eye(len(k[t]), dtype=torch.float64) - beta[t] * torch.outer(k[t], k[t])
        torch.testing.assert_close(matrix, expected, rtol=1e-6, atol=1e-6)


def test_no_tokens_and_no_cache_are_refused() -> None:
    with pytest.raises(InputError, match="at least one token, got none"):
        view(TOKENS[:0])
    config = LanguageModelConfig(
        vocab_size=257, width=8, layers=("attention",), mixers={"attention": {"causal": False}}
    )
    with pytest.raises(InputError, match="causal=False"):
        view(TOKENS, LanguageModel(config, seed=0))


def test_characters_of_a_matrix() -> None:
    assert shade(torch.tensor([[1.0, 0.0], [-0.5, 0.3]])) == ["██  ", "--▒▒"]
    assert [len(line) for line in shade(torch.eye(30))] == [16] * 8


def test_the_figure_says_whose_keys_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    said: list[str] = []
    text = Figure.text

    def noted(figure: Figure, x: float, y: float, words: str, **style: Any) -> Any:
        said.append(words)
        return text(figure, x, y, words, **style)

    monkeypatch.setattr(Figure, "text", noted)
    views = [shown for shown in view(TOKENS[:2]) if shown.mixer in ("attention", "s4d", "kda")]
    draw(views, ["l", "$\\nothing"], "weights of $HOME", tmp_path / "zoo.png")
    assert (tmp_path / "zoo.png").read_bytes().startswith(b"\x89PNG")
    assert any(r"weights of \$HOME" in words for words in said)
    assert {"attention", "s4d", "kda"} <= set(said)
