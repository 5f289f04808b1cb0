"""The contracts, for every mixer and MLP of the registry with every set of its options.

Most are in tests/support/conformance, since whole models keep them too.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from lavagna.errors import ConfigError, InputError, ShapeError, StateError
from lavagna.mixers.registry import build, mixer_class, option_types
from lavagna.ops.tree import leaves, named_leaves, nbytes

from ..support.conformance import *  # noqa: F403
from ..support.conformance import binds, parametrize
from ..support.contracts import ROWS, Subject, answer, inputs, random
from ..support.subjects import ALL, DEFAULTS, MIXER_SUBJECTS
from ..support.variants import WIDTH


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, MIXER_SUBJECTS, lambda subject: subject in DEFAULTS)


each_name = pytest.mark.parametrize("name", ALL)


#: parameters that change nothing: a softmax over one token is one, whatever its query and key
WITHOUT_EFFECT = {"attention-window=1": {"q_proj.weight", "k_proj.weight"}}


@binds(subset=True)
def test_every_parameter_matters(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 20, ROWS)
    found = answer(subject, x, state, subject(x, state))
    without = {
        name
        for name, _ in subject.module.named_parameters()
        # A parameter may act through the state alone: a bias of all keys changes no softmax.
        if all(found[f"d {loss} / d {name}"].abs().max() < 1e-6 for loss in ("output", "state"))
    }
    assert without == WITHOUT_EFFECT.get(subject.name, set())


@binds(representatives=True)
def test_a_first_state_of_any_dtype_and_device(subject: Subject) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        state = subject.module.init_state(3, dtype=dtype, device="meta")
        assert nbytes(state) == subject.module.state_bytes(0, 3, dtype)
        assert {t.device.type for t in leaves(state)} <= {"meta"}
        assert {t.shape[0] for t in leaves(state)} <= {3}


def held(state: Any) -> dict[str, tuple[torch.Size, bool]]:
    """What a state holds for one row: shapes by name, and what is complex."""
    return {name: (tensor.shape[1:], tensor.is_complex()) for name, tensor in named_leaves(state)}


def test_a_state_of_other_options_is_refused(subject: Subject) -> None:
    name = subject.name.split("-")[0]
    own = held(subject.module.init_state(ROWS))
    for other in MIXER_SUBJECTS:
        state = other.module.init_state(ROWS)
        if other.name.split("-")[0] == name and state is not None and held(state) != own:
            with pytest.raises(InputError, match=r"state.* must .*got") as caught:
                subject(random(ROWS, 3, WIDTH), state)
            if held(state).keys() != own.keys():
                assert isinstance(caught.value, StateError)
                assert type(subject.module).__name__ in str(caught.value)


def test_a_state_with_a_part_missing_is_refused(subject: Subject) -> None:
    state = subject.module.init_state(ROWS)
    for part in getattr(state, "_fields", ()):
        if getattr(state, part) is not None:
            with pytest.raises(StateError, match=rf"a state must hold .*\b{part}\b.*, got one with "):
                subject(random(ROWS, 3, WIDTH), state._replace(**{part: None}))


@binds(representatives=True)
def test_bytes_of_the_state_grow_with_the_rows(subject: Subject) -> None:
    for context in (0, 3, 1000):
        assert subject.module.state_bytes(context, 7) == 7 * subject.module.state_bytes(context)


@binds(representatives=True)
def test_an_input_of_another_dtype_or_device_is_refused(subject: Subject) -> None:
    x = random(ROWS, 3, WIDTH)
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ShapeError, match=rf"x must have the parameters' dtype torch.float64, got {dtype}$"):
            subject(x.to(dtype))
    with pytest.raises(ShapeError, match=r"x must be on cpu as the parameters, got meta$"):
        subject(x.to("meta"))


@binds(representatives=True)
def test_decays_may_stay_wide_beside_projections_in_half_precision(subject: Subject) -> None:
    module = copy.deepcopy(subject.module).bfloat16()
    for part in module.modules():
        for name, parameter in part.named_parameters(recurse=False):
            if name in ("A_log", "dt_bias"):
                setattr(part, name, nn.Parameter(parameter.float()))
    assert module(random(ROWS, 3, WIDTH, dtype=torch.bfloat16))[0].dtype == torch.bfloat16


@each_name
def test_an_unknown_option_is_refused_with_the_nearest_known(name: str) -> None:
    option = next(iter(option_types(mixer_class(name, ALL)).model_fields))
    with pytest.raises(ConfigError, match=f"unknown option of {name} '{option}s'; did you mean '{option}'"):
        build(name, WIDTH, {f"{option}s": 2}, table=ALL)
    with pytest.raises(TypeError, match=f"{option}s"):
        mixer_class(name, ALL)(WIDTH, **{f"{option}s": 2})


@each_name
def test_an_option_of_another_type_is_refused(name: str) -> None:
    for option in option_types(mixer_class(name, ALL)).model_fields:
        with pytest.raises(ConfigError, match=rf"{name}: option {option}\b.*, got \[\]") as caught:
            build(name, WIDTH, {option: []}, table=ALL)
        assert "\n" not in str(caught.value)


@each_name
def test_an_unknown_name_is_refused_with_the_nearest_known(name: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown mixer '{name}q'; did you mean '{name}'"):
        build(f"{name}q", WIDTH, table=ALL)


@each_name
def test_a_width_below_one_is_refused(name: str) -> None:
    for width in (0, -4):
        with pytest.raises(InputError, match=f"width must be at least 1, got {width}"):
            build(name, width, table=ALL)
