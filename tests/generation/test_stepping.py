"""One token after the other: what a stepper plays is what the model computes."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lavagna import native
from lavagna.errors import InputError, StateError
from lavagna.generation import Sampling, read, stream
from lavagna.generation.stepping import Stepper
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel, ModelState
from lavagna.ops.dispatch import automatic
from lavagna.ops.recording import Recording
from lavagna.ops.tree import leaves
from tests.support.models import LAYERS, make_model

KINDS = (*LAYERS, *(f"2*{name}" for name in MIXERS if f"2*{name}" not in LAYERS))


def reading_of(model: LanguageModel, rows: int = 2) -> Any:
    return read(model, [torch.arange(5 + row) for row in range(rows)])


@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers", KINDS)
@torch.no_grad()
def test_steps_give_the_bits_of_the_model(layers: str, dtype: torch.dtype, position: str) -> None:
    places = {"max_positions": 32} if position == "learned" else {}
    model = make_model(layers, dtype=dtype, position=position, **places)
    reading = reading_of(model)
    before = [leaf.clone() for leaf in leaves(reading.state)]
    stepper, state = Stepper(model, reading.state), reading.state
    for step in range(6):
        tokens = torch.tensor([7 * step, 250 - step])
        taken = stepper(tokens)
        hidden, state = model.hidden(tokens[:, None], state=state)
        torch.testing.assert_close(taken.logits, model.head(hidden[:, -1]), rtol=0, atol=0)
        for own, expected in zip(leaves(taken.state), leaves(state), strict=True):
            torch.testing.assert_close(own, expected, rtol=0, atol=0)
    for leaf, untouched in zip(leaves(reading.state), before, strict=True):
        torch.testing.assert_close(leaf, untouched, rtol=0, atol=0)


@torch.no_grad()
def test_layers_of_a_fixed_state_are_played() -> None:
    model = make_model("gated_deltanet+attention")
    calls: list[str] = []

    def noted(mixer: Any) -> Any:
        mix = mixer.mix
        return lambda *args: calls.append(type(mixer).__name__) or mix(*args)

    for block in model.stack():
        block.mixer.mix = noted(block.mixer)  # type: ignore[method-assign]
    stepper = Stepper(model, reading_of(model).state)
    calls.clear()
    for _ in range(10):
        stepper(torch.tensor([1, 2]))
    assert calls.count("Attention") == 10
    assert calls.count("GatedDeltaNet") == (2 if native.available() else 10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("rows", [1, 5])
@torch.no_grad()
def test_other_formats_and_more_rows(dtype: torch.dtype, rows: int) -> None:
    model = make_model("mamba+gated_deltanet", dtype=dtype, norm_position="post")
    reading = reading_of(model, rows)
    stepper, state = Stepper(model, reading.state), reading.state
    for step in range(5):
        tokens = torch.arange(rows) + step
        taken = stepper(tokens)
        hidden, state = model.hidden(tokens[:, None], state=state)
        torch.testing.assert_close(taken.logits, model.head(hidden[:, -1]), rtol=0, atol=0)


class Odd(nn.Module):
    """A linear layer with something that a recording must not repeat."""

    def __init__(self, linear: nn.Module, kind: str) -> None:
        super().__init__()
        self.linear, self.kind, self.calls = linear, kind, 0
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        self.calls += 1
        if self.kind == "counts":
            return y * self.calls
        if self.kind == "remembers":
            self.mean.mul_(0.9).add_(0.1 * y.mean())  # type: ignore[operator]
            return y - self.mean
        if self.kind == "decides":
            return y.clamp(max=0.1) if max(y.abs().flatten().tolist()) > 1.0 else y
        return nn.functional.dropout(y, 0.5)


@pytest.mark.parametrize("kind", ["counts", "remembers", "decides", "drops"])
@torch.no_grad()
def test_modules_that_do_more_than_compute_do_it_once_a_token(kind: str) -> None:
    twins = [make_model("2*mamba") for _ in range(2)]
    for model in twins:
        mixer: Any = model.stack()[0].mixer
        mixer.out_proj = Odd(mixer.out_proj, kind)
    stepped, computed = twins
    readings = []
    for model in twins:
        torch.manual_seed(99)
        readings.append(reading_of(model))
    stepper, state = Stepper(stepped, readings[0].state), readings[1].state
    for step in range(8):
        tokens = torch.tensor([3 * step, 5 * step])
        torch.manual_seed(step)
        taken = stepper(tokens)
        torch.manual_seed(step)
        hidden, state = computed.hidden(tokens[:, None], state=state)
        torch.testing.assert_close(taken.logits, computed.head(hidden[:, -1]), rtol=0, atol=0)


@torch.no_grad()
def test_settings_may_change_between_steps() -> None:
    model = make_model("2*mamba")
    stepper, state = Stepper(model, reading_of(model).state), reading_of(model).state
    out_proj: Any = model.stack()[0].mixer.out_proj
    for step in range(12):
        out_proj.train(step >= 9)
        tokens = torch.tensor([step, step + 1])
        dtype = torch.bfloat16 if step < 6 else torch.float16
        with torch.autocast("cpu", dtype, enabled=3 <= step < 8):
            taken = stepper(tokens)
            hidden, state = model.hidden(tokens[:, None], state=state)
            torch.testing.assert_close(taken.logits, model.head(hidden[:, -1]), rtol=0, atol=0)


@torch.no_grad()
def test_what_watches_operators_sees_them() -> None:
    class Louder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            return 2 * result if func is torch.ops.aten.add.Tensor else result

    model = make_model("2*mamba")
    stepper, state = Stepper(model, reading_of(model).state), reading_of(model).state
    for step in range(9):
        tokens = torch.tensor([step, step + 1])
        with Louder() if step % 4 == 3 else nullcontext():
            taken = stepper(tokens)
            hidden, state = model.hidden(tokens[:, None], state=state)
            logits = model.head(hidden[:, -1])
        torch.testing.assert_close(taken.logits, logits, rtol=0, atol=0)


def test_what_does_not_fit_is_refused() -> None:
    model = make_model("2*mamba")
    placed = make_model("2*mamba", position="sinusoidal")
    for wrong, message in (
        (reading_of(placed).state, "from a model with position 'none'"),
        (reading_of(make_model("3*mamba")).state, "must have 2 layers, got 3"),
        (None, "must be a ModelState, got a NoneType"),
    ):
        with pytest.raises(StateError, match=message):
            Stepper(model, wrong)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"a token for each of 2 rows, got tokens of shape \[1\]"):
        Stepper(model, reading_of(model).state)(torch.tensor([1]))


def test_a_token_that_is_refused_is_not_read() -> None:
    model = make_model("2*mamba")
    stepper = Stepper(model, reading_of(model).state)
    reading = stepper(torch.tensor([1, 2]))
    with pytest.raises(InputError, match="tokens must be from 0 to 256, got 257"):
        stepper(torch.tensor([1, 257]))
    assert reading.state.rows == 2


def test_readings_can_be_copied_and_sent_away() -> None:
    model = make_model()
    steps = stream(model, reading_of(model), max_tokens=6, sampling=Sampling(temperature=0))
    for _ in range(3):
        _, _, reading = next(steps)
    made = [
        copy.deepcopy(reading.state),
        pickle.loads(pickle.dumps(reading.state)),
        reading.state.detach(),
        reading.state.to("cpu"),
        reading.state.clone(),
    ]
    before = [[leaf.clone() for leaf in leaves(state)] for state in made]
    next(steps)
    for state, old in zip(made, before, strict=True):
        assert type(state) is ModelState
        assert all(map(torch.equal, leaves(state), old))


def test_a_finished_stream_leaves_nothing_behind() -> None:
    model = make_model("2*mamba")
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            *_, (_, _, reading) = stream(model, reading_of(model), max_tokens=5)
        assert [o for o in gc.get_objects() if type(o) in (Recording, Stepper)] == []
        assert reading.state.rows == 2
    finally:
        gc.enable()


def test_compiled_and_wrapped_models_generate() -> None:
    model = make_model("2*mamba")
    greedy = Sampling(temperature=0)
    expected = [new for _, new, _ in stream(model, reading_of(model), max_tokens=5, sampling=greedy)]
    wrapped: Any = torch.compile(model, backend="eager")
    assert [new for _, new, _ in stream(wrapped, reading_of(model), max_tokens=5, sampling=greedy)] == expected


def test_a_state_is_there_until_the_next_step() -> None:
    model = make_model()
    steps = stream(model, reading_of(model), max_tokens=5, sampling=Sampling(temperature=0))
    _, _, first = next(steps)
    kept = first.fork(1)
    _, _, second = next(steps)
    for ask in (first.state.clone, lambda: first.reorder(torch.tensor([0])), lambda: first.fork(2)):
        with pytest.raises(StateError, match="overwritten by the next step: copy it"):
            ask()
    assert not torch.equal(kept.logits, second.logits)
    *_, (_, _, last) = steps
    assert last.state.rows == 2
    after = stream(model, kept, max_tokens=4, sampling=Sampling(temperature=0))
    assert torch.equal([reading.logits for _, _, reading in after][-1], last.logits)


@pytest.mark.parametrize("everywhere", [False, True])
def test_hooks_see_every_step(everywhere: bool) -> None:
    model = make_model("2*mamba")
    reading = reading_of(model)
    seen: list[nn.Module] = []
    target = model.stack()[0].mixer

    def hook(module: nn.Module, *_: Any) -> None:
        seen.extend([module] if module is target else [])

    handle = (nn.modules.module.register_module_forward_hook if everywhere else target.register_forward_hook)(hook)
    try:
        for _ in stream(model, reading, max_tokens=6):
            pass
    finally:
        handle.remove()
    assert len(seen) == 6


def test_a_model_with_a_way_of_its_own_goes_it() -> None:
    class Louder(LanguageModel):
        def hidden(self, tokens: Tensor | None = None, **keys: Any) -> Any:
            hidden, state = super().hidden(tokens, **keys)
            return 2 * hidden, state

    plain = make_model("2*mamba")
    model = Louder(plain.config, seed=0)
    model.load_state_dict(plain.state_dict())
    *_, (_, _, reading) = stream(model, reading_of(model), max_tokens=4, sampling=Sampling(temperature=0))
    *_, (_, _, quiet) = stream(plain, reading_of(plain), max_tokens=4, sampling=Sampling(temperature=0))
    torch.testing.assert_close(reading.logits, 2 * quiet.logits)


def test_inference_mode_may_end_between_steps() -> None:
    model = make_model("2*mamba")
    steps = stream(model, reading_of(model), max_tokens=6, sampling=Sampling(temperature=0))
    with torch.inference_mode():
        inside = [next(steps)[1] for _ in range(4)]
    tokens = inside + [new for _, new, _ in steps]
    whole = stream(model, reading_of(model), max_tokens=6, sampling=Sampling(temperature=0))
    assert tokens == [new for _, new, _ in whole]


def negated(model: LanguageModel) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1)


def reassigned(model: LanguageModel) -> None:
    model.load_state_dict({name: -t for name, t in model.state_dict().items()}, assign=True)


def moved(model: LanguageModel) -> None:
    for parameter in model.parameters():
        parameter.data = -parameter.data


@pytest.mark.parametrize("layers", ["2*mamba", "gated_deltanet+attention"])
@pytest.mark.parametrize("change", [negated, reassigned, moved, LanguageModel.double, LanguageModel.bfloat16])
@torch.no_grad()
def test_parameters_may_change_between_steps(layers: str, change: Any) -> None:
    model = make_model(layers, tied=False)
    stepper, state = Stepper(model, reading_of(model).state), reading_of(model).state
    for step in range(9):
        if step == 4:
            change(model)
            [torch.full((1 << 18,), float("nan")) for _ in range(20)]  # where the old ones were
        tokens = torch.tensor([step, step + 1])
        taken = stepper(tokens)
        hidden, state = model.hidden(tokens[:, None], state=state)
        torch.testing.assert_close(taken.logits, model.head(hidden[:, -1]), rtol=0, atol=0)


@torch.no_grad()
def test_the_choice_of_an_implementation_may_change_between_steps() -> None:
    model = make_model("2*mamba")
    stepper, state = Stepper(model, reading_of(model).state), reading_of(model).state
    for step, impl in enumerate(["auto"] * 4 + ["torch"] * 4 + ["auto"] * 4):
        tokens = torch.tensor([step, step + 1])
        with automatic(impl):
            taken = stepper(tokens)
            hidden, state = model.hidden(tokens[:, None], state=state)
            torch.testing.assert_close(taken.logits, model.head(hidden[:, -1]), rtol=0, atol=0)
