"""What is special to gated_linear: numbers by hand, the side of the gate, heads, the normaliser, memory."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lavagna.errors import BackendError, InputError, ShapeError
from lavagna.ops import gated_linear
from lavagna.ops.linear.api import TABLE, LinearState
from lavagna.ops.linear.parallel import LIMIT
from lavagna.ops.segments import segments

from ..support.budget import check, close, close_all

ROWS = [row for row in TABLE.rows if not TABLE.reasons(row)]
each_row = pytest.mark.parametrize(
    "choice", [{"form": r.form, "impl": r.impl} for r in ROWS], ids=[f"{r.impl}.{r.form}" for r in ROWS]
)
each_gate = pytest.mark.parametrize("gate", ["constant", "scalar", "channel"])
HALF, QUARTER = math.log(1 / 2), math.log(1 / 4)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(
    gate: str | None = "channel",
    *,
    B: int = 2,
    T: int = 40,
    H: int = 2,
    HV: int = 4,
    K: int = 3,
    V: int = 5,
    positive: bool = False,
    bonus: bool = False,
) -> dict[str, Tensor]:
    """Tensors of a call in float64; the state is not among them."""
    shapes = {"q": (B, T, H, K), "k": (B, T, H, K), "v": (B, T, HV, V)}
    gates = {"constant": (HV,), "scalar": (B, T, HV), "channel": (B, T, HV, K)}
    tensors = {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}
    if positive:
        tensors |= {name: tensors[name].abs() + 0.1 for name in ("q", "k")}
    if gate is not None:
        tensors["log_decay"] = -torch.rand(gates[gate], dtype=torch.float64)
    if bonus:
        tensors["bonus"] = torch.rand(HV, K, dtype=torch.float64)
    return tensors


def answer(tensors: dict[str, Tensor], state: Any = None, **options: Any) -> dict[str, Tensor]:
    """Output, state and the gradients of a random loss on both."""
    asking = {name: t.detach().clone().requires_grad_() for name, t in tensors.items()}
    output, state = gated_linear(**asking, state=state, return_state=True, **options)
    found = {"output": output} | dict(zip(("S", "z"), tree_leaves(state), strict=False))
    generator = torch.Generator().manual_seed(1)
    ups = [torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in found.values()]
    grads = torch.autograd.grad(list(found.values()), list(asking.values()), ups)
    return found | {f"d {name}": grad for name, grad in zip(asking, grads, strict=True)}


# By hand ---------------------------------------------------------------------------------------------------

TWO_TOKENS = {
    "q": f64([[[[1.0, 2.0]], [[3.0, 1.0]]]]),
    "k": f64([[[[1.0, 1.0]], [[2.0, -1.0]]]]),
    "v": f64([[[[5.0, 1.0]], [[1.0, 3.0]]]]),
}
#: the first token halves the state, the second quarters it; by key channel: (1/2, 1/4), then (1/4, 1/2)
GATES = {
    "constant": f64([HALF]),
    "scalar": f64([[[HALF], [QUARTER]]]),
    "channel": f64([[[[HALF, QUARTER]], [[QUARTER, HALF]]]]),
}
START = f64([[[[8.0, 0.0], [4.0, 16.0]]]])


@each_row
@pytest.mark.parametrize(
    ("gate", "outputs", "final"),
    [
        # S_1 = S_0 + [[5,1],[5,1]] = [[13,1],[9,17]];  S_2 = S_1 + [[2,6],[−1,−3]]
        (None, [[31.0, 35.0], [53.0, 35.0]], [[15.0, 7.0], [8.0, 14.0]]),
        # S_1 = S_0/2 + … = [[9,1],[7,9]];  S_2 = S_1/2 + … = [[6.5,6.5],[2.5,1.5]]
        ("constant", [[23.0, 19.0], [22.0, 21.0]], [[6.5, 6.5], [2.5, 1.5]]),
        # S_2 = S_1/4 + … = [[4.25,6.25],[.75,−.75]]
        ("scalar", [[23.0, 19.0], [13.5, 18.0]], [[4.25, 6.25], [0.75, -0.75]]),
        # rows are key channels: S_1 = [[4,0],[1,4]] + … = [[9,1],[6,5]];  S_2 = [[2.25,.25],[3,2.5]] + …
        ("channel", [[21.0, 11.0], [14.75, 18.25]], [[4.25, 6.25], [2.0, -0.5]]),
    ],
)
def test_two_tokens(choice: dict, gate: str | None, outputs: list, final: list) -> None:
    result = gated_linear(**TWO_TOKENS, log_decay=GATES.get(gate), scale=1.0, state=START, return_state=True, **choice)
    close("output", result.output[0, :, 0], f64(outputs), 1e-15)
    close("state", result.state[0, 0], f64(final), 1e-15)


@each_row
def test_two_tokens_with_a_bonus(choice: dict) -> None:
    """It reads before the state fades: o_1 = (S_0 + (2, 0.5)∘k vᵀ)ᵀ q, o_2 the same on S_1 = [[9,1],[6,5]]."""
    result = gated_linear(
        **TWO_TOKENS,
        log_decay=GATES["channel"],
        bonus=f64([[2.0, 0.5]]),
        scale=1.0,
        state=START,
        return_state=True,
        **choice,
    )
    # S_0 + [[10,2],[2.5,.5]] = [[18,2],[6.5,16.5]];  S_1 + [[4,12],[−.5,−1.5]] = [[13,13],[5.5,3.5]]
    close("output", result.output[0, :, 0], f64([[31.0, 35.0], [44.5, 42.5]]), 1e-15)
    close("state", result.state[0, 0], f64([[4.25, 6.25], [2.0, -0.5]]), 1e-15)


@each_row
def test_two_tokens_normalized(choice: dict) -> None:
    """z_1 = (2, 6)/2 + (1, 1) = (2, 4), z_2 = (2, 4)/4 + (2, −1) = (2.5, 0); the scale cancels."""
    result = gated_linear(
        **TWO_TOKENS,
        log_decay=GATES["scalar"],
        normalizer=True,
        state=LinearState(START, f64([[[2.0, 6.0]]])),
        return_state=True,
        **choice,
    )
    close("output", result.output[0, :, 0], f64([[23.0 / 10, 19.0 / 10], [13.5 / 7.5, 18.0 / 7.5]]), 1e-9)
    close("S", result.state.S[0, 0], f64([[4.25, 6.25], [0.75, -0.75]]), 1e-15)
    close("z", result.state.z[0, 0], f64([2.5, 0.0]), 1e-15)


@each_row
def test_gradients_of_two_tokens(choice: dict) -> None:
    """The first component of o_2 alone, under one decay per key channel."""
    asking = {name: t.clone().requires_grad_() for name, t in (TWO_TOKENS | {"log_decay": GATES["channel"]}).items()}
    state = START.clone().requires_grad_()
    output, _ = gated_linear(**asking, scale=1.0, state=state, **choice)
    found = torch.autograd.grad(output[0, 1, 0, 0], [*asking.values(), state])
    exact = {
        "q": [[0.0, 0.0], [4.25, 2.0]],  # the first column of S_2
        "k": [[5 * 3 / 4, 5 * 1 / 2], [1 * 3.0, 1 * 1.0]],  # v_j · q ∘ decays after j
        "v": [[3 / 4 + 1 / 2, 0.0], [3 * 2 - 1.0, 0.0]],
        # S_0 fades by all of them, what token 1 wrote only by those of token 2
        "log_decay": [[3 * 8 / 8, 1 * 4 / 8], [3 * (8 / 8 + 5 / 4), 4 / 8 + 5 / 2]],
    }
    for (name, want), got in zip(exact.items(), found, strict=False):
        close(name, got[0, :, 0], f64(want), 1e-15)
    close("state", found[-1][0, 0], f64([[3 / 8, 0.0], [1 / 8, 0.0]]), 1e-15)


# The gate --------------------------------------------------------------------------------------------------


@each_row
def test_the_gate_fades_key_channels_not_value_channels(choice: dict) -> None:
    """With K = V both sides have a shape that fits; only one is the recurrence."""
    tensors = draw(K=4, V=4, H=1, HV=1, T=9)
    output, final = gated_linear(**tensors, scale=1.0, return_state=True, **choice)
    q, k, v, decay = (tensors[name][:, :, 0] for name in ("q", "k", "v", "log_decay"))
    right = wrong = torch.zeros(2, 4, 4, dtype=torch.float64)
    for t in range(9):
        write = k[:, t, :, None] * v[:, t, None, :]
        right = decay[:, t].exp()[:, :, None] * right + write
        wrong = decay[:, t].exp()[:, None, :] * wrong + write
        close(f"output {t}", output[:, t, 0], (right * q[:, t, :, None]).sum(1), 1e-14)
    close("state", final[:, 0], right, 1e-14)
    assert (final[:, 0] - wrong).abs().max() > 0.1 * right.abs().max()


@each_row
@pytest.mark.parametrize("options", [{}, {"normalizer": True}], ids=["plain", "normalized"])
@pytest.mark.parametrize("bonus", [False, True], ids=["", "bonus"])
@each_gate
def test_no_gate_is_a_gate_of_zero(choice: dict, gate: str, bonus: bool, options: dict) -> None:
    tensors = draw(gate, positive=True, bonus=bonus)
    zero = answer(tensors | {"log_decay": torch.zeros_like(tensors["log_decay"])}, **options, **choice)
    del tensors["log_decay"], zero["d log_decay"]
    close_all(answer(tensors, **options, **choice), zero, 1e-13)


@each_row
def test_coarser_gates_are_finer_ones_with_equal_values(choice: dict) -> None:
    tensors = draw("constant")
    (B, T, HV), K = tensors["v"].shape[:3], tensors["k"].shape[3]
    for shape in ((B, T, HV), (B, T, HV, K)):
        coarse = answer(tensors, **choice)
        constant = tensors["log_decay"]
        finer = constant.expand(B, T, HV) if len(shape) == 3 else constant[:, None].expand(shape)
        fine = answer(tensors | {"log_decay": finer}, **choice)
        summed = fine["d log_decay"].sum((0, 1) if len(shape) == 3 else (0, 1, 3))
        close_all(fine | {"d log_decay": summed}, coarse, 1e-12)


@each_row
@each_gate
def test_digits_survive_beside_a_decay_that_forgets_everything(choice: dict, gate: str) -> None:
    """After −1e4 a difference of float32 cumulative sums turns e^−0.4 = .67032 into .67663."""
    log_decay = torch.tensor([-1e4, -0.1, -0.1, -0.1, -0.1])
    k = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]).view(1, 5, 1, 1)
    gates = {"scalar": log_decay.view(1, 5, 1), "channel": log_decay.view(1, 5, 1, 1)}
    if gate == "constant":  # one decay for all tokens: what remains of two parts is what remains of each
        gates["constant"] = torch.tensor([-0.1])
    asking = gates[gate].clone().requires_grad_()
    ones = torch.ones(1, 5, 1, 1)
    output, state = gated_linear(ones, k, ones, asking, return_state=True, **choice)
    remains = torch.tensor([1.0, -0.1, -0.2, -0.3, -0.4]).double()
    remains[0] = 0.0
    close("output", output.double().flatten(), remains.exp(), 3e-7)
    close("state", state.double().flatten(), remains[-1:].exp(), 3e-7)
    (found,) = torch.autograd.grad(state.sum(), asking)
    exact = f64([0.0, *[math.exp(-0.4)] * 4]) if gate != "constant" else f64([4 * math.exp(-0.4)])
    close("d log_decay", found.double().flatten(), exact, 3e-7)


@pytest.mark.parametrize("gate", ["scalar", "channel"])
@pytest.mark.parametrize("form", ["recurrent", "chunk", "parallel"])
@pytest.mark.parametrize("bonus", [False, True], ids=["", "bonus"])
def test_chunks_in_which_every_token_forgets(form: str, gate: str, bonus: bool) -> None:
    """Sums of −1e4 reach −6.4e5 in a chunk of 64; nothing overflows and each token sees itself alone."""
    tensors = {name: t.float() for name, t in draw(gate, T=130, bonus=bonus).items()}
    tensors["log_decay"] = torch.full_like(tensors["log_decay"], -1e4)
    found = answer(tensors, form=form, chunk_size=64)
    same = answer(tensors, impl="reference")
    exact = answer({name: t.double() for name, t in tensors.items()}, impl="reference")
    for name in exact:
        check(name, found[name], same[name], exact[name])
    assert not found["d log_decay"].any()


@pytest.mark.parametrize("reads_first", [False, True])
def test_segments_are_products_of_their_own_tokens(reads_first: bool) -> None:
    log_decay = torch.tensor([-0.1, -1e4, -0.2, -0.3])
    found = segments(log_decay, reads_first=reads_first)
    a, b, c = (math.exp(x) for x in (-0.2, -0.3, -0.5))
    after = [[1, 0, 0, 0], [0, 1, 0, 0], [0, a, 1, 0], [0, c, b, 1]]
    before = [[0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, a, 1, 0]]
    close("between", found.between.double(), f64(before if reads_first else after), 2e-7)
    close(
        "read", found.read.double(), f64([1, math.exp(-0.1), 0, 0] if reads_first else [math.exp(-0.1), 0, 0, 0]), 2e-7
    )
    close("write", found.write.double(), f64([0, c, b, 1]), 2e-7)
    assert found.total == 0


@each_row
def test_padding_of_packed_sequences_does_not_fade_under_a_constant_decay(choice: dict) -> None:
    """Sequences of different lengths are run side by side; the shorter ones must not go on fading."""
    tensors = draw("constant", B=1, T=12, bonus=True)
    bounds = torch.tensor([0, 5, 5, 12])
    state = torch.randn(3, 4, 3, 5, dtype=torch.float64)
    output, final = gated_linear(**tensors, state=state, return_state=True, cu_seqlens=bounds, **choice)
    for m, (a, b) in enumerate([(0, 5), (5, 5), (5, 12)]):
        cut = {name: t[:, a:b] if name in "qkv" else t for name, t in tensors.items()}
        alone = gated_linear(**cut, state=state[m : m + 1], return_state=True, impl="reference")
        close(f"output {m}", output[:, a:b], alone.output, 1e-13)
        close(f"state {m}", final[m], alone.state[0], 1e-13)


# Heads -----------------------------------------------------------------------------------------------------


@each_row
@each_gate
def test_neighbouring_value_heads_share_a_key_head(choice: dict, gate: str) -> None:
    """Value head h uses key head h // (HV/H), not h % H."""
    tensors = draw(gate, H=2, HV=6)
    output = gated_linear(**tensors, **choice).output
    for h in range(6):
        one = {name: tensors[name][:, :, [h // 3]] for name in ("q", "k")} | {"v": tensors["v"][:, :, [h]]}
        one["log_decay"] = tensors["log_decay"][[h]] if gate == "constant" else tensors["log_decay"][:, :, [h]]
        close(f"head {h}", output[:, :, [h]], gated_linear(**one, **choice).output, 1e-13)
        if h // 3 != h % 2:
            one |= {name: tensors[name][:, :, [h % 2]] for name in ("q", "k")}
            wrong = gated_linear(**one, **choice).output
            assert (output[:, :, [h]] - wrong).abs().max() > 0.1


# Normaliser ------------------------------------------------------------------------------------------------


@each_row
@pytest.mark.parametrize("gate", [None, "constant", "scalar", "channel"])
def test_the_normalizer_has_gradients(choice: dict, gate: str | None) -> None:
    """Every gradient of the quotient, numerator and denominator written out with masked products."""
    tensors = draw(gate, T=10, H=1, HV=1, positive=True)
    asking = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    output = gated_linear(**asking, normalizer=True, **choice).output
    q, k, v = (asking[name][:, :, 0] for name in "qkv")
    decay = asking.get("log_decay", torch.zeros(1, dtype=torch.float64))
    decay = decay[:, :, 0] if decay.ndim == 4 else decay.expand(2, 10, 3)
    upto = decay.cumsum(1)  # mild decays, in float64: differences of sums will do
    seen = (upto[:, :, None] - upto[:, None]).exp()
    weights = (q[:, :, None] * seen * k[:, None]).sum(-1).tril()
    expected = (weights @ v / weights.sum(-1, keepdim=True))[:, :, None]
    close("output", output, expected, 1e-9)
    up = torch.randn_like(output)
    found = torch.autograd.grad(output, list(asking.values()), up)
    exact = torch.autograd.grad(expected, list(asking.values()), up)
    for name, got, want in zip(asking, found, exact, strict=True):
        close(f"d {name}", got, want, 1e-8)


@each_row
def test_the_normalizer_remembers_keys_before_a_cut(choice: dict) -> None:
    tensors = draw("scalar", positive=True)

    def piece(a: int, b: int, state: LinearState | None) -> Any:
        cut = {name: t[:, a:b] for name, t in tensors.items()}
        return gated_linear(**cut, normalizer=True, state=state, return_state=True, **choice)

    whole, first = piece(0, 40, None), piece(0, 17, None)
    second = piece(17, 40, first.state)
    close("output", torch.cat([first.output, second.output], 1), whole.output, 1e-12)
    close("z", second.state.z, whole.state.z, 1e-12)
    forgetful = piece(17, 40, first.state._replace(z=torch.zeros_like(first.state.z)))
    assert (forgetful.output - whole.output[:, 17:]).abs().max() > 0.01


@each_row
def test_a_sequence_without_weights_divides_by_the_smallest_denominator(choice: dict) -> None:
    """No key at all: 0 / 1e-10 = 0, not NaN."""
    zeros = torch.zeros(1, 3, 1, 2)
    result = gated_linear(zeros, zeros, torch.ones(1, 3, 1, 2), normalizer=True, return_state=True, **choice)
    assert not result.output.any()
    assert isinstance(result.state, LinearState)


@each_row
def test_the_two_parts_of_a_state_can_be_saved_apart(choice: dict) -> None:
    """No memory is shared between them, and none is kept beside them."""
    _, state = gated_linear(**draw("scalar", positive=True), normalizer=True, return_state=True, **choice)
    for part in state:
        assert part.is_contiguous()
        assert part.untyped_storage().nbytes() == part.numel() * part.element_size()


# Chunks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 7, 8, 64, 1000])
@pytest.mark.parametrize("gate", [None, "constant", "scalar", "channel"])
@pytest.mark.parametrize("bonus", [False, True], ids=["", "bonus"])
def test_any_chunk_size_gives_the_same(gate: str | None, chunk_size: int, bonus: bool) -> None:
    tensors = draw(gate, T=23, bonus=bonus)
    state = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    found = answer(tensors, state, form="chunk", chunk_size=chunk_size)
    close_all(found, answer(tensors, state, impl="reference"), 1e-12)


class _Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        sizes = [t.untyped_storage().nbytes() // t.element_size() for t in tree_leaves(result) if isinstance(t, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("gate", [None, "constant", "scalar", "channel"])
def test_training_memory_of_chunks(gate: str | None) -> None:
    """No tensor has a pair of tokens and a key channel; what is kept is a small multiple of the inputs."""
    T, HV, K, V = 512, 2, 64, 64
    tensors = {name: t.float().requires_grad_() for name, t in draw(gate, B=1, T=T, H=2, HV=HV, K=K, V=V).items()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with _Largest() as largest, torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = gated_linear(**tensors, form="chunk").output
        output.sum().backward()
    per_token = T * HV
    assert largest.elements <= per_token * K * V // 32  # the states between chunks of 32
    assert sum(kept.values()) <= 16 * per_token * K


def test_the_state_of_a_long_sequence_is_as_small_as_that_of_a_short_one() -> None:
    sizes = set()
    for T in (3, 300):
        _, state = gated_linear(**draw("channel", T=T), return_state=True)
        sizes.add(state.untyped_storage().nbytes())
    assert len(sizes) == 1


# Choice and refusals ---------------------------------------------------------------------------------------


def test_parallel_refuses_what_would_not_fit() -> None:
    T = 1 + math.isqrt(LIMIT // 3)
    tensors = draw("channel", B=1, T=T, H=1, HV=1)
    with pytest.raises(BackendError, match=f"T={T} needs {T * T * 3:,} decays .* use the chunk form"):
        gated_linear(**tensors, form="parallel")
    assert gated_linear(**tensors).output.shape == (1, T, 1, 5)


def test_a_wider_state_makes_a_wider_result() -> None:
    tensors = {name: t.float() for name, t in draw("scalar").items()}
    state = torch.zeros(2, 4, 3, 5, dtype=torch.float64)
    for row in ROWS:
        output, final = gated_linear(**tensors, state=state, return_state=True, form=row.form, impl=row.impl)
        assert (output.dtype, final.dtype) == (torch.float32, torch.float64)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"v": torch.zeros(2, 40, 3, 5)}, "v must have a multiple of H=2 heads, got HV=3"),
        ({"log_decay": torch.zeros(2, 40, 2)}, r"log_decay must have shape \[HV=4\] or .*, got \[2, 40, 2\]"),
        ({"bonus": torch.zeros(2, 3)}, r"bonus must have shape \[HV=4, K=3\], got \[2, 3\]"),
        (
            {"state": LinearState(torch.zeros(1), torch.zeros(1))},
            "normalizer=False .* must be a Tensor, got LinearState",
        ),
        (
            {"state": torch.zeros(2, 4, 3, 5), "normalizer": True},
            "normalizer=True .* must be a LinearState, got Tensor",
        ),
        (
            {"state": LinearState(torch.zeros(2, 4, 3, 5), torch.zeros(2, 4, 5)), "normalizer": True},
            r"state.z must have shape \[2, HV=4, K=3\], got \[2, 4, 5\]",
        ),
    ],
    ids=["heads", "log_decay", "bonus", "state-of-a-pair", "state-of-one", "z"],
)
def test_refusals(change: dict, words: str) -> None:
    with pytest.raises(ShapeError, match=f"gated_linear: .*{words}"):
        gated_linear(**{**draw("scalar"), **change})


def test_a_chunk_size_must_be_positive() -> None:
    with pytest.raises(InputError, match="gated_linear: chunk_size must be an integer from 1 on, got 0"):
        gated_linear(**draw(), chunk_size=0)
