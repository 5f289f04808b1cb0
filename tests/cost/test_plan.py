"""A plan equals what the built model does: parameters, states, torch's own counts, memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lavagna.cost import Plan, plan
from lavagna.data.packing import Batch
from lavagna.errors import ConfigError, InputError
from lavagna.mixers.registry import MIXERS, MLPS, mixer_class, option_types
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.ops.dispatch import automatic
from lavagna.ops.tree import leaves
from lavagna.training import TrainingConfig, loss, make_optimizer
from lavagna.training.loss import BatchLoss
from tests.support.variants import VARIANTS

VOCAB, WIDTH, ROWS = 23, 16, 2
SHORT, LONG = 77, 1333
DTYPES = (torch.float32, torch.bfloat16)

HYBRID = {"layers": "2*(gated_deltanet+attention)+mamba", "mixers": {"attention": {"heads": 2, "window": 40}}}
DENSE = {
    "layers": "2*attention",
    "mixers": {"attention": {"position": "none", "qkv_bias": True, "out_bias": True}},
    "mlp": "gelu",
    "norm": "layernorm",
    "position": "learned",
    "max_positions": 500,
    "tied": False,
}
POST = {"layers": "2*gla", "norm_position": "post", "position": "sinusoidal", "final_norm": False}


def config(layers: str, **keys: Any) -> LanguageModelConfig:
    return LanguageModelConfig.parse({"vocab_size": VOCAB, "width": WIDTH, "layers": layers, **keys})


def _every_option() -> Iterator[Any]:
    """Models of one kind of layer with each set of options, and of more kinds."""
    for name, sets in VARIANTS.items():
        for number, options in enumerate(sets):
            if name in MIXERS:
                yield pytest.param(config(name, mixers={name: options}), id=f"{name}-{number}")
            else:
                layers = config("attention", mlp=name, mlps={name: options})
                yield pytest.param(layers, id=f"{name}-{number}")
    for name, keys in (("hybrid", HYBRID), ("dense", DENSE), ("post", POST)):
        yield pytest.param(config(**keys), id=name)


SHAPES = list(_every_option())


def of(mixer: str, layers: int = 1) -> LanguageModelConfig:
    """Layers with one wide head: chunks are as long as a head's width allows, and long sequences have few of them."""
    options = {mixer: {"heads": 1}} if "heads" in option_types(mixer_class(mixer)).model_fields else {}
    return config(f"{layers}*{mixer}", width=64, mixers=options)


#: all in float32, and each kind of layer in half precision
IN_DTYPES = [
    pytest.param(shape.values[0], dtype, id=f"{shape.id}-{str(dtype).removeprefix('torch.')}")
    for dtype in DTYPES
    for shape in SHAPES
    if dtype == torch.float32 or not str(shape.id)[-1].isdigit() or str(shape.id).endswith("-0")
]
GENERATING = [shape for shape in SHAPES if "causal" not in str(shape.values[0].mixers)]


@pytest.fixture(autouse=True)
def portable() -> Iterator[None]:
    """The implementation that is planned: torch's counter sees nothing of a native one."""
    with automatic("torch"):
        yield


def batch(tokens: int) -> Batch:
    ids = torch.randint(VOCAB, (ROWS, tokens + 1))
    return Batch(ids[:, :-1].clone(), ids[:, 1:].clone(), torch.ones(ROWS, tokens), None, None)


_PLANNED: dict[Any, Plan] = {}


def planned(shape: LanguageModelConfig, tokens: int, dtype: torch.dtype = torch.float32) -> Plan:
    """A plan for ROWS rows, made once."""
    key = shape.to_json(), tokens, dtype
    if key not in _PLANNED:
        _PLANNED[key] = plan(shape, [tokens], batch_size=ROWS, dtype=dtype)
    return _PLANNED[key]


def test_every_layer_is_planned() -> None:
    assert set(VARIANTS) == {*MIXERS, *MLPS}


# --- parameters ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_are_the_models(shape: LanguageModelConfig) -> None:
    model, told = LanguageModel(shape), planned(shape, SHORT)
    assert sum(told.parameters.values()) == sum(p.numel() for p in model.parameters())
    assert told.weights == 4 * sum(told.parameters.values())
    assert told.parameters["embedding"] == VOCAB * WIDTH
    assert told.parameters["head"] == (0 if shape.tied else VOCAB * WIDTH)
    for layer in told.layers:
        blocks = [b for name, b in zip(shape.layers, model.stack(), strict=True) if name == layer.mixer]
        assert layer.blocks == len(blocks)
        assert layer.parameters == sum(p.numel() for p in blocks[0].parameters())
        assert told.parameters[layer.mixer] == sum(p.numel() for b in blocks for p in b.mixer.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_and_moments_are_those_of_a_step(dtype: torch.dtype) -> None:
    shape = config(**HYBRID)
    told, model = planned(shape, SHORT, dtype), LanguageModel(shape).to(dtype)
    optimizer = make_optimizer(model, TrainingConfig())
    BatchLoss(model)(batch(8), None)[0].backward()
    optimizer.step()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert told.gradients == sum(g.numel() * g.element_size() for g in gradients)
    state = [t for values in optimizer.state.values() for t in values.values()]
    assert told.optimizer == sum(t.numel() * t.element_size() for t in state)


# --- states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shape", "dtype"), IN_DTYPES)
def test_state_bytes_are_those_after_reading(shape: LanguageModelConfig, dtype: torch.dtype) -> None:
    model = LanguageModel(shape).to(dtype)
    with torch.no_grad():
        state = model(torch.randint(VOCAB, (ROWS, SHORT))).state
    at = planned(shape, SHORT, dtype).at[SHORT]
    assert at.state == state.nbytes
    assert at.cache == state.nbytes - model.init_state(ROWS).nbytes


# --- FLOPs --------------------------------------------------------------------------------------------------


def assert_trains_as_counted(shape: LanguageModelConfig, tokens: int) -> None:
    """What torch counts in a step of training: forward, and forward and backward."""
    model = BatchLoss(LanguageModel(shape))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        value, _ = model(batch(tokens), None)
        forward = counter.get_total_flops()
        value.backward()
    at = planned(shape, tokens).at[tokens]
    assert (sum(at.forward.values()), sum(at.training.values())) == (forward, counter.get_total_flops())


def assert_generates_as_counted(shape: LanguageModelConfig, context: int) -> None:
    """What torch counts in a token behind a context."""
    model = LanguageModel(shape)
    with torch.no_grad():
        state = model(torch.randint(VOCAB, (ROWS, context))).state
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            model(torch.randint(VOCAB, (ROWS, 1)), state=state)
    generation = planned(shape, context).at[context].generation
    assert generation is not None
    assert sum(generation.values()) == counter.get_total_flops()


@pytest.mark.parametrize("tokens", [1, SHORT])
@pytest.mark.parametrize("shape", SHAPES)
def test_training_is_what_torch_counts(shape: LanguageModelConfig, tokens: int) -> None:
    assert_trains_as_counted(shape, tokens)


@pytest.mark.parametrize("name", MIXERS)
def test_training_on_long_sequences_is_what_torch_counts(name: str) -> None:
    assert_trains_as_counted(of(name), LONG)


@pytest.mark.parametrize("window", [64, 300])
def test_windows_are_what_torch_counts(window: int) -> None:
    shape = config("attention", mixers={"attention": {"window": window}})
    assert_trains_as_counted(shape, LONG)
    assert_generates_as_counted(shape, LONG)


def test_checkpointing_adds_what_torch_counts() -> None:
    shape = config(**HYBRID)
    model = BatchLoss(LanguageModel(shape))
    model.model.checkpointing = True
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(batch(SHORT), None)[0].backward()
    # torch stops a block's second pass before the product that nothing in backward needs, the last one.
    last = sum(b.parts()[-1].out_proj.weight.numel() for b in model.model.stack())
    at = planned(shape, SHORT).at[SHORT]
    assert sum(at.training.values()) + at.checkpointed - 2 * ROWS * SHORT * last == counter.get_total_flops()


@pytest.mark.parametrize("tokens", [10, 11, 33, 500])
def test_a_head_in_pieces_is_what_torch_counts(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "LOGITS_AT_ONCE", 21 * VOCAB)  # of 2 · 10 tokens at once, of 2 · 11 in two pieces
    assert_trains_as_counted(config("gla", tied=False), tokens)  # a shape of its own, planned in pieces alone


@pytest.mark.parametrize("shape", GENERATING)
def test_generation_is_what_torch_counts(shape: LanguageModelConfig) -> None:
    for context in (1, SHORT):
        assert_generates_as_counted(shape, context)


def test_generation_behind_a_long_context_is_what_torch_counts() -> None:
    for window in (None, 40):
        assert_generates_as_counted(config("attention", mixers={"attention": {"window": window}}), 400)


def test_what_carries_no_state_generates_nothing() -> None:
    shape = config("gla+attention", mixers={"attention": {"causal": False}})
    assert planned(shape, 8).at[8].generation is None


def test_dtypes_count_the_same() -> None:
    wide, half = (planned(config(**HYBRID), SHORT, dtype).at[SHORT] for dtype in DTYPES)
    assert (wide.forward, wide.training, wide.generation) == (half.forward, half.training, half.generation)


def test_parts_are_told_apart() -> None:
    at = plan(config("attention", mixers={"attention": {"head_dim": 4}}, mlp="relu"), [10], batch_size=3).at[10]
    tokens, D = 30, WIDTH
    projections, pairs, mlp, head = 4 * 2 * D * D * tokens, 2 * 2 * D * 10 * tokens, 16 * D * D * tokens, 2 * D * VOCAB
    assert at.forward == {"attention": projections + pairs, "relu": mlp, "head": head * tokens}
    # Of the products of the first layer's input the gradient is wanted too: it is the embedding's.
    assert at.training == {part: 3 * flops for part, flops in at.forward.items()}
    assert at.generation == {
        "attention": 3 * (4 * 2 * D * D + 2 * 2 * D * 11),  # the token sees the ten before it and itself
        "relu": 3 * 16 * D * D,
        "head": 3 * head,
    }


# --- activations --------------------------------------------------------------------------------------------


def held(model: LanguageModel, data: Batch) -> int:
    """Bytes of what autograd saves in a forward pass and of the state: parameters left out, memory counted once."""
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}
    alive = []

    def keep(tensor: Tensor) -> Tensor:
        alive.append(tensor)
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        _, state = BatchLoss(model)(data, None)
    for leaf in (leaf for block in state.layers for leaf in leaves(block)):
        keep(leaf)
    return sum(kept.values())


class Live(TorchDispatchMode):
    """The most bytes that what operations make takes at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known and storage._cdata not in given:
                    self.now += storage.nbytes()
                    self.most = max(self.most, self.now)
                    self.known[storage._cdata] = weakref.ref(storage, self._freer(storage._cdata, storage.nbytes()))
        return out

    def _freer(self, key: int, size: int) -> Callable[[Any], None]:
        def free(_: Any) -> None:
            self.now -= size
            del self.known[key]

        return free


def most_live(model: LanguageModel, data: Batch) -> int:
    """The most memory that a step of training takes beside parameters and batch, measured."""
    with Live() as live:
        value = BatchLoss(model)(data, None)[0]  # as in training, where the state is cut off from its graph
        value.backward()
    return live.most


@pytest.mark.parametrize(("shape", "dtype"), IN_DTYPES)
def test_activations_are_what_autograd_keeps(shape: LanguageModelConfig, dtype: torch.dtype) -> None:
    model = LanguageModel(shape).to(dtype)
    # The CPU's LayerNorm keeps its statistics in half precision; others do not.
    assert planned(shape, SHORT, dtype).at[SHORT].activations == pytest.approx(held(model, batch(SHORT)), rel=0.02)


@pytest.mark.parametrize("name", MIXERS)
def test_activations_of_long_sequences_are_what_autograd_keeps(name: str) -> None:
    shape = of(name)
    expected = held(LanguageModel(shape), batch(LONG))
    assert planned(shape, LONG).at[LONG].activations == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MIXERS)
def test_peaks_are_within_a_fifth_of_the_measured_ones(name: str, checkpointing: bool) -> None:
    shape = of(name, layers=4)
    model = LanguageModel(shape)
    model.checkpointing = checkpointing
    at = planned(shape, 331).at[331]
    expected = at.checkpointed_peak if checkpointing else at.peak
    assert expected == pytest.approx(most_live(model, batch(331)), rel=0.2)


# --- sums, refusals -----------------------------------------------------------------------------------------


def test_a_step_takes_all_its_parts() -> None:
    planned = plan(config(**HYBRID), [64], batch_size=4)
    fixed = planned.weights + planned.gradients + planned.optimizer
    assert planned.training_bytes(64) == fixed + planned.at[64].peak
    assert planned.training_bytes(64, checkpointing=True) == fixed + planned.at[64].checkpointed_peak


def test_positions_end() -> None:
    shape = config(**DENSE)
    assert set(plan(shape, [500]).at) == {500}
    with pytest.raises(ConfigError, match=r"end at 500 tokens, got a context of 501"):
        plan(shape, [20, 501])


@pytest.mark.parametrize(
    ("contexts", "rows", "got"), [([], 1, "none"), ([0], 1, "0"), ([5, -1], 1, "-1"), ([5], 0, "0")]
)
def test_numbers_that_cannot_be(contexts: list[int], rows: int, got: str) -> None:
    with pytest.raises(InputError, match=f"got {got}"):
        plan(config("gla"), contexts, batch_size=rows)
