"""gated_delta by hand, its algebra, and what is special to its chunk form."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lavagna.errors import InputError
from lavagna.ops import gated_delta
from lavagna.ops.dispatch import Result
from lavagna.ops.tree import leaves

from ..support.budget import close

WAYS = {
    "reference": {"impl": "reference", "form": "recurrent"},
    "recurrent": {"impl": "torch", "form": "recurrent"},
    "chunk": {"impl": "torch", "form": "chunk"},
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def unit(*shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, dtype=torch.float64), dim=-1)


def draw(T: int = 40, *, B: int = 2, H: int = 2, HV: int = 2, K: int = 16, V: int = 5) -> dict[str, Tensor]:
    """The arguments of a call without decay, in float64."""
    return {
        "q": unit(B, T, H, K),
        "k": unit(B, T, H, K),
        "v": torch.randn(B, T, HV, V, dtype=torch.float64),
        "beta": torch.rand(B, T, HV, dtype=torch.float64),
        "state": torch.randn(B, HV, K, V, dtype=torch.float64),
    }


def run(given: dict[str, Tensor], way: dict[str, str], **more: Any) -> Result:
    return gated_delta(**{**given, "return_state": True, **way, **more})


def everything(given: dict[str, Tensor], way: dict[str, str], **more: Any) -> dict[str, Tensor]:
    """Output, state and the gradients of a fixed random loss on both, by name."""
    given = {name: t.detach().requires_grad_() for name, t in given.items()}
    result = run(given, way, **more)
    generator = torch.Generator().manual_seed(7)
    loss = sum((t * torch.randn(t.shape, generator=generator, dtype=t.dtype)).sum() for t in leaves(result))
    found = torch.autograd.grad(loss, list(given.values()))
    return result._asdict() | {f"d {name}": g for name, g in zip(given, found, strict=True)}


# By hand ---------------------------------------------------------------------------------------------------


def by_hand(k: list, q: list, v: list, beta: list, decay: list) -> dict[str, Tensor]:
    """Two tokens of one head with K = V = 2; two channels of zeros more, so that a chunk may hold both tokens."""

    def rows(x: list, pad: int = 0) -> Tensor:
        return F.pad(torch.tensor(x, dtype=torch.float64), (0, pad))[None, :, None]

    log_decay = torch.tensor(decay, dtype=torch.float64).log()
    return {
        "q": rows(q, 2),
        "k": rows(k, 2),
        "v": rows(v),
        "beta": torch.tensor(beta, dtype=torch.float64).view(1, 2, 1),
        "log_decay": F.pad(log_decay, (0, 2))[None, :, None] if log_decay.ndim == 2 else log_decay.view(1, 2, 1),
    }


@ways
def test_two_tokens_with_a_decay_of_the_head(way: dict[str, str]) -> None:
    given = by_hand(
        k=[[1, 0], [0.6, 0.8]],
        q=[[1, 1], [1, 2]],
        v=[[2, -4], [1.3, 0.4]],
        beta=[0.5, 2],
        decay=[1, 0.5],
    )
    output, state = run(given, way, scale=1.0)
    # S_1 = ½ (1, 0)ᵀ (2, −4); fades to ½ S_1; kᵀS = (.3, −.6), error (1, 1), written twice
    expected = torch.tensor([[[[1, -2]], [[4.9, 3.4]]]], dtype=torch.float64)
    close("output", output, expected, 1e-15)
    close("state", state[:, :, :2], torch.tensor([[[[1.7, 0.2], [1.6, 1.6]]]], dtype=torch.float64), 1e-15)


@ways
def test_two_tokens_with_a_decay_of_each_channel(way: dict[str, str]) -> None:
    given = by_hand(
        k=[[0.6, 0.8], [1, 0]],
        q=[[1, 0], [1, 1]],
        v=[[5, -10], [2.5, 1]],
        beta=[1, 0.5],
        decay=[[1, 1], [0.5, 0.25]],
    )
    output, state = run(given, way, scale=1.0)
    # S_1 = (.6, .8)ᵀ (5, −10); its rows fade to (1.5, −3) and (1, −2); kᵀS = (1.5, −3), error (1, 4), half written
    expected = torch.tensor([[[[3, -6]], [[3, -3]]]], dtype=torch.float64)
    close("output", output, expected, 1e-15)
    close("state", state[:, :, :2], torch.tensor([[[[2, -1], [1, -2]]]], dtype=torch.float64), 1e-15)


@ways
def test_the_default_scale_is_one_over_the_root_of_k(way: dict[str, str]) -> None:
    given = draw()
    close("output", run(given, way).output, run(given, way, scale=0.25).output, 1e-15)


@ways
def test_value_head_h_has_key_head_h_over_the_group(way: dict[str, str]) -> None:
    given = draw(H=2, HV=6) | {"log_decay": -torch.rand(2, 40, 6, dtype=torch.float64)}
    output, state = run(given, way)
    for h in range(6):
        heads = {name: h // 3 if name in ("q", "k") else h for name in given}
        alone = {n: t[:, [h]] if n == "state" else t[:, :, [heads[n]]] for n, t in given.items()}
        expected = run(alone, way)
        close(f"output of head {h}", output[:, :, [h]], expected.output, 1e-13)
        close(f"state of head {h}", state[:, [h]], expected.state, 1e-13)


# The delta rule's algebra ----------------------------------------------------------------------------------


def kinds_of_decay(B: int = 2, T: int = 40, HV: int = 2, K: int = 16) -> dict[str, dict[str, Tensor]]:
    shapes = {"head": (HV,), "scalar": (B, T, HV), "vector": (B, T, HV, K)}
    decays = {kind: {"log_decay": -torch.rand(shape, dtype=torch.float64)} for kind, shape in shapes.items()}
    return {"none": {}} | decays


decays = pytest.mark.parametrize("decay", ["none", "head", "scalar", "vector"])


@ways
@decays
def test_with_beta_one_and_unit_keys_reading_the_key_gives_the_value(way: dict[str, str], decay: str) -> None:
    given = draw() | kinds_of_decay()[decay]
    given |= {"q": given["k"], "beta": torch.ones_like(given["beta"])}
    close("output", run(given, way, scale=1.0).output, given["v"], 1e-12)


@ways
@decays
def test_with_beta_zero_nothing_is_written(way: dict[str, str], decay: str) -> None:
    more = kinds_of_decay()[decay]
    given = draw() | more | {"beta": torch.zeros(2, 40, 2, dtype=torch.float64)}
    total = more.get("log_decay", torch.zeros(2, 40, 2, dtype=torch.float64))
    total = (total * 40 if total.ndim == 1 else total.sum(1)).exp()
    total = total[..., None] if total.ndim == 3 else total[..., None, None]
    close("state", run(given, way).state, total * given["state"], 1e-13)


@ways
def test_with_beta_two_and_unit_keys_what_the_key_holds_is_reflected_at_the_value(way: dict[str, str]) -> None:
    given = draw(1)
    given |= {"q": given["k"], "beta": torch.full((2, 1, 2), 2.0, dtype=torch.float64)}
    held = torch.einsum("bhkv,bthk->bthv", given["state"], given["k"])
    close("output", run(given, way, scale=1.0).output, 2 * given["v"] - held, 1e-14)
    twice = {n: t if n == "state" else torch.cat([t, t], 1) for n, t in given.items()}
    close("state after two", run(twice, way).state, given["state"], 1e-14)


@ways
@pytest.mark.parametrize("shape", [(2,), (2, 40, 2), (2, 40, 2, 16)], ids=["head", "scalar", "vector"])
def test_a_decay_of_one_is_no_decay(way: dict[str, str], shape: tuple[int, ...]) -> None:
    given = draw()
    plain = everything(given, way)
    ones = everything(given | {"log_decay": torch.zeros(shape, dtype=torch.float64)}, way)
    for name, expected in plain.items():
        close(name, ones[name], expected, 1e-13)
    nearly = run(given | {"log_decay": torch.full(shape, -1e-9, dtype=torch.float64)}, way)
    close("output", nearly.output, plain["output"], 1e-6)


@ways
def test_equal_channel_decays_are_the_decay_of_the_head(way: dict[str, str]) -> None:
    given, log_decay = draw(), -torch.rand(2, 40, 2, dtype=torch.float64)
    scalar = everything(given | {"log_decay": log_decay}, way)
    vector = everything(given | {"log_decay": log_decay[..., None].repeat(1, 1, 1, 16)}, way)
    vector["d log_decay"] = vector["d log_decay"].sum(-1)
    for name, expected in scalar.items():
        close(name, vector[name], expected, 1e-12)


@ways
def test_the_constant_decay_of_a_head_is_that_decay_at_every_token(way: dict[str, str]) -> None:
    given, log_decay = draw(), -torch.rand(2, dtype=torch.float64)
    constant = everything(given | {"log_decay": log_decay}, way)
    spread = everything(given | {"log_decay": log_decay.expand(2, 40, 2).contiguous()}, way)
    spread["d log_decay"] = spread["d log_decay"].sum((0, 1))
    for name, expected in constant.items():
        close(name, spread[name], expected, 1e-13)


@ways
def test_gates_and_erasures_act_on_the_keys_side(way: dict[str, str]) -> None:
    """With K = V the twin that fades value channels has the same shapes and another answer."""
    given = draw(V=16) | {"log_decay": -torch.rand(2, 40, 2, 16, dtype=torch.float64)}
    output = run(given, way, scale=1.0).output

    def literal(fade: str) -> Tensor:
        S, rows = given["state"], []
        for t in range(40):
            q, k, v, beta, decay = (given[n][:, t] for n in ("q", "k", "v", "beta", "log_decay"))
            S = torch.einsum(fade, S, decay.exp())
            S = S + torch.einsum("bh,bhk,bhv->bhkv", beta, k, v - torch.einsum("bhkv,bhk->bhv", S, k))
            rows.append(torch.einsum("bhkv,bhk->bhv", S, q))
        return torch.stack(rows, 1)

    close("output", output, literal("bhkv,bhk->bhkv"), 1e-12)
    assert (output - literal("bhkv,bhv->bhkv")).abs().max() > 0.1 * output.abs().max()


@ways
def test_the_norm_of_keys_and_queries(way: dict[str, str]) -> None:
    given = draw()
    given |= {"q": 3 * given["q"], "k": given["k"] * torch.rand(2, 40, 2, 1, dtype=torch.float64)}
    given["k"][:, ::5] = 0
    divided = {n: given[n] / torch.sqrt(given[n].square().sum(-1, keepdim=True) + 1e-6) for n in ("q", "k")}
    close("output", run(given, way, qk_l2norm=True).output, run(given | divided, way).output, 1e-13)
    for name, tensor in everything(given, way, qk_l2norm=True).items():
        assert torch.isfinite(tensor).all(), name


# Decays ----------------------------------------------------------------------------------------------------


@ways
@pytest.mark.parametrize("channels", [0, 64], ids=["scalar", "vector"])
def test_a_decay_keeps_its_digits_behind_a_reset(way: dict[str, str], channels: int) -> None:
    """Differences of float32 running sums give .67006 and .67071 for e^−.4 (.67032) after −1e4."""
    T = 32
    k = torch.eye(64)[:T][None, :, None]
    log_decay = torch.full((1, T, 1), -0.4)
    log_decay[:, 0] = -1e4
    log_decay[:, 7] = -87.0
    if channels:
        log_decay = log_decay[..., None].repeat(1, 1, 1, channels)
    beta = torch.ones(1, T, 1)
    given = {"q": k.roll(1, 1), "k": k, "v": torch.ones(1, T, 1, 1), "beta": beta, "log_decay": log_decay}
    output = run(given, way, scale=1.0).output[0, :, 0, 0]  # token t reads what token t − 1 wrote
    expected = torch.full((T,), math.exp(-0.4))
    expected[0], expected[7] = 0.0, math.exp(-87.0)
    assert ((output - expected).abs() <= 1e-6 * expected).all()


# The chunk form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [0, -4, 3, 48])
def test_a_chunk_is_a_power_of_two(chunk_size: int) -> None:
    with pytest.raises(InputError, match=f"power of two, got {chunk_size}"):
        run(draw(), WAYS["chunk"], chunk_size=chunk_size)


def test_keys_that_wipe_the_whole_memory_leave_nothing() -> None:
    """K orthogonal keys at β = 1 erase all but rounding, and three times over, chunk by chunk, all but its cube."""
    K = 16
    q, _ = torch.linalg.qr(torch.randn(K, K, dtype=torch.float64))
    keys = q[torch.arange(3 * K) % K][None, :, None].float()
    given = {
        "q": keys,
        "k": keys,
        "v": torch.zeros(1, 3 * K, 1, 4),
        "beta": torch.ones(1, 3 * K, 1),
        "state": torch.randn(1, 1, K, 4),
    }
    for chunk_size in (None, 64):
        left = run(given, WAYS["chunk"], chunk_size=chunk_size).state
        assert left.abs().max() < 1e-15, chunk_size


def test_reflections_on_one_key_add_no_more_than_a_rounding_a_token() -> None:
    """β = 2 with the same key over and over: the memory swings from side to side and nothing dampens an error."""
    T = 512
    key = F.normalize(torch.randn(64), dim=0)
    given = {
        "q": F.normalize(torch.randn(1, T, 1, 64), dim=-1),
        "k": key.expand(1, T, 1, 64),
        "v": torch.randn(1, T, 1, 8),
        "beta": torch.full((1, T, 1), 2.0),
        "state": torch.randn(1, 1, 64, 8),
    }
    exact = run({name: t.double() for name, t in given.items()}, WAYS["reference"])
    found = run(given, WAYS["chunk"])
    for name in ("output", "state"):
        got, expected = getattr(found, name).double(), getattr(exact, name)
        assert (got - expected).abs().max() <= T * torch.finfo(torch.float32).eps * expected.abs().max(), name


class _Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


@pytest.mark.parametrize("channels", [0, 64], ids=["scalar", "vector"])
def test_no_tensor_of_pairs_times_channels(channels: int) -> None:
    """Neither forward nor backward: the largest tensor is keys and queries side by side."""
    B, T, H, K = 1, 256, 2, 64
    given = {name: t.float().requires_grad_() for name, t in draw(T, B=B, H=H, HV=H, K=K, V=K).items()}
    gate = -torch.rand(B, T, H, channels) if channels else -torch.rand(B, T, H)
    with _Largest() as largest:
        output, state = run(given | {"log_decay": gate.requires_grad_()}, WAYS["chunk"])
        (output.sum() + state.sum()).backward()
    assert largest.elements <= 2 * B * T * H * K


def test_what_training_keeps() -> None:
    """Twenty numbers a channel and token at the most, where one state a token would be 64."""
    B, T, H, K = 1, 512, 2, 64
    given = {name: t.float().requires_grad_() for name, t in draw(T, B=B, H=H, HV=H, K=K, V=K).items()}
    gate = (-torch.rand(B, T, H, K)).requires_grad_()
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run(given | {"log_decay": gate}, WAYS["chunk"])
    assert sum(kept.values()) / 4 <= 20 * B * T * H * K
