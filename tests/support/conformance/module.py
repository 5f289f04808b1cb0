"""Modules like any other: copied, saved, trained, differentiated."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor

from lavagna.ops.tree import leaves, map_tensors, named_leaves

from ..contracts import ROWS, Subject, agree, inputs, random, read_state, values
from .binding import binds, stateful


@binds(representatives=True)
def test_copies_and_files(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 9, ROWS)
    expected = values(*subject(x, state))
    deep = copy.deepcopy(subject.module)
    loaded = copy.deepcopy(subject.module)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(subject.module.state_dict())
    for module in (deep, loaded, pickle.loads(pickle.dumps(subject.module))):
        assert list(module.state_dict()) == list(subject.module.state_dict())
        for name, tensor in values(*subject.on(module)(x, state)).items():
            assert torch.equal(tensor, expected[name]), name


@binds(only=stateful, representatives=True)
def test_states_are_copied_and_pickled(subject: Subject) -> None:
    with torch.no_grad():
        state = read_state(subject, 3)
        for _ in range(2):  # where a cache has room for more
            _, state = subject.step(random(3, subject.width), state)
        x = random(3, 4, subject.width)
        copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
        subject(x, state)
        expected = values(*subject(x, state))
        for one in copies:
            agree(values(*subject(x, one)), expected, 0)


@binds(representatives=True)
def test_strides_do_not_matter(subject: Subject) -> None:
    x = random(7, 3, subject.width).transpose(0, 1)
    agree(values(*subject(x)), values(*subject(x.contiguous())), 1e-12)
    same = random(1, 7, subject.width).expand(3, -1, -1)
    agree(values(*subject(same)), values(*subject(same.contiguous())), 1e-12)
    wide = random(3, 7, 2 * subject.width)[..., ::2]
    agree(values(*subject(wide)), values(*subject(wide.contiguous())), 1e-12)


@binds(representatives=True)
def test_training_and_evaluation_are_the_same(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 9, ROWS)
    expected = values(*subject(x, state))
    module = copy.deepcopy(subject.module).train()
    for name, tensor in values(*subject.on(module)(x, state)).items():
        assert torch.equal(tensor, expected[name]), name


@binds(representatives=True)
def test_without_gradients_the_answer_is_the_same(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 20, ROWS)
    expected = values(*subject(x, state))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            agree(values(*subject(x, state)), expected, 1e-12)


@binds(subset=True)
def test_gradients_are_derivatives(subject: Subject) -> None:
    x, state = inputs(subject, 1, 4, 1)
    parameters = dict(subject.module.named_parameters())
    asked = {"x": x, **{f"state.{name}": t for name, t in named_leaves(state) if t.requires_grad}, **parameters}
    parts = len(asked) - len(parameters)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        x, *given = tensors[:parts]
        state_parts = iter(given)
        start = map_tensors(lambda t: next(state_parts) if t.requires_grad else t, state)
        output, final = subject.with_parameters(dict(zip(parameters, tensors[parts:], strict=True)), x, start)
        return tuple(t for t in (output, *leaves(final)) if t.requires_grad)

    assert torch.autograd.gradcheck(function, tuple(asked.values()), fast_mode=True)
