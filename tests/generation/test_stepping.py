"""One token after the other: what a stepper plays is what the model computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lavagna import native
from lavagna.errors import StateError
from lavagna.generation import Sampling, read, stream
from lavagna.generation.stepping import Stepper
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel
from lavagna.ops.dispatch import automatic
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
