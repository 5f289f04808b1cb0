"""Nothing is kept outside of the state, and nobody writes on what was handed in."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from lavagna.models import BlockState, ModelState
from lavagna.ops.tree import leaves, map_tensors, named_leaves, select

from ..contracts import ROWS, Subject, agree, inputs, random, read_state, values
from .binding import binds, stateful


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Everything that hangs on a module, by name, with the versions of its tensors.

    Cached properties are left out: they have no argument, and so nothing of what was read.
    """
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(getattr(type(part), key, None), cached_property):
                continue
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for inner, item in entries:
                version = item._version if isinstance(item, Tensor) else None
                found[f"{prefix}.{key}.{inner}"] = (id(item), version)
    return found


@binds(representatives=True)
def test_reading_leaves_no_trace_on_the_module(subject: Subject) -> None:
    before, numbers = snapshot(subject.module), {n: p.clone() for n, p in subject.module.state_dict().items()}
    x, state = inputs(subject, ROWS, 9, ROWS)
    first = values(*subject(x, state))
    subject(x, token_mask=torch.arange(9) > torch.tensor([[1], [4]]))
    subject(random(1, 9, subject.width), cu_seqlens=torch.tensor([0, 4, 9]))
    with torch.inference_mode():
        subject(random(3, 4, subject.width))
    second = values(*subject(x, state))
    assert snapshot(subject.module) == before
    for name, tensor in subject.module.state_dict().items():
        assert torch.equal(tensor, numbers[name]), name
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name


@binds(only=stateful, representatives=True)
def test_two_sequences_read_in_turn_do_not_meet(subject: Subject) -> None:
    xs = [random(ROWS, 12, subject.width, seed=seed) for seed in ("a", "b")]
    states: list[Any] = [None, None]
    outputs: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, 12)):
            for i, x in enumerate(xs):
                output, states[i] = subject(x[:, start:stop], states[i])
                outputs[i].append(output)
        for i, x in enumerate(xs):
            agree(values(torch.cat(outputs[i], 1), states[i]), values(*subject(x)))


@binds(only=stateful, representatives=True)
def test_nothing_handed_in_is_written_on(subject: Subject) -> None:
    """A state can be continued again, and differently, whatever was read from it before."""
    mask, bounds = torch.arange(4) > torch.tensor([[0], [2]]), torch.tensor([0, 1, 4])
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode():
            x, packed = random(ROWS, 4, subject.width), random(1, 4, subject.width)
            _, state = subject(random(ROWS, 6, subject.width, seed="prompt"))
            for _ in range(3):  # where a cache has room for what follows
                _, state = subject.step(random(ROWS, subject.width, seed="more"), state)
            handed = [x, packed, mask, bounds]
            copies = [t.clone() for t in handed]
            before = {name: t.clone() for name, t in named_leaves(state)}
            expected = values(*subject(x, map_tensors(torch.clone, state)))
            subject.step(random(ROWS, subject.width), state)
            subject(x, state, token_mask=mask)
            subject(packed, state, cu_seqlens=bounds)
            got = values(*subject(x, state))
            for tensor, copied in zip(handed, copies, strict=True):
                assert torch.equal(tensor, copied)
            for name, tensor in named_leaves(state):
                assert torch.equal(tensor, before[name]), name
            agree(got, expected, 1e-12)


def as_model_state(state: Any) -> ModelState:
    return state if isinstance(state, ModelState) else ModelState((BlockState(state, None),), None)


def of_subject(state: ModelState, like: Any) -> Any:
    return state if isinstance(like, ModelState) else state.layers[0].mixer


@binds(only=stateful, representatives=True)
def test_states_are_cloned_forked_reordered_and_reset(subject: Subject) -> None:
    state = read_state(subject, 3, 6)
    whole = as_model_state(state)

    def check(changed: ModelState, rows: list[int]) -> None:
        got = values(*subject(x[rows], of_subject(changed, state)))
        one_by_one = [subject(x[[r]], select(state, torch.tensor([r]))) for r in rows]
        agree({"output": got["output"]}, {"output": torch.cat([y for y, _ in one_by_one])}, 1e-12)

    with torch.no_grad():
        x = random(3, 4, subject.width)
        check(whole.clone(), [0, 1, 2])
        check(whole.fork(2), [0, 0, 1, 1, 2, 2])
        check(whole.reorder(torch.tensor([2, 0, 0, 1])), [2, 0, 0, 1])
        check(whole.to("cpu"), [0, 1, 2])
        for mine, theirs in zip(leaves(whole.clone()), leaves(whole), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.untyped_storage().data_ptr() != theirs.untyped_storage().data_ptr() or not mine.numel()
        forgotten = of_subject(whole.reset(torch.tensor([False, True, True])), state)
        output, _ = subject(x, forgotten)
        agree({"reset": output[1:]}, {"reset": subject(x[1:])[0]}, 1e-12)
        agree({"kept": output[:1]}, {"kept": subject(x[:1], select(state, torch.tensor([0])))[0]}, 1e-12)
