"""A recorded step gives what the step gives, to the bit, or is not played."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lavagna.errors import BackendError
from lavagna.mixers import Mixer, build
from lavagna.mixers.registry import MIXERS, MLPS
from lavagna.ops import gated_delta
from lavagna.ops.constants import constant, keeping
from lavagna.ops.library import calling, observed
from lavagna.ops.overwriting import overwrites, overwriting
from lavagna.ops.recording import Recording, fixed
from lavagna.ops.tree import leaves, map_tensors

from ..support.mixers import randomised
from ..support.variants import VARIANTS, WIDTH

RECURRENT = [name for name in (*MIXERS, *MLPS) if name != "attention"]

each_variant = pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(name, options, id=f"{name}-{i}") for name in RECURRENT for i, options in enumerate(VARIANTS[name])],
)


@pytest.fixture(autouse=True)
def _no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def make(name: str, options: dict[str, Any], dtype: torch.dtype) -> Mixer:
    table = MLPS if name in MLPS else MIXERS
    return randomised(build(name, WIDTH, options, table=table)).to(dtype)  # type: ignore[call-arg]


def clones(state: Any) -> Any:
    return map_tensors(torch.clone, state)


def same(one: Any, other: Any) -> None:
    assert len(leaves(one)) == len(leaves(other))
    for a, b in zip(leaves(one), leaves(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@each_variant
def test_every_mixer_is_played_as_it_is_computed(
    name: str, options: dict[str, Any], dtype: torch.dtype, rows: int
) -> None:
    mixer = make(name, options, dtype)
    inputs = torch.randn(6, rows, 1, WIDTH, generator=torch.Generator().manual_seed(0)).to(dtype)
    state = mixer.init_state(rows)
    assert fixed(state)
    own = clones(state)
    recording = Recording(mixer, inputs[0].clone(), own)
    outputs = [recording.y.clone()]
    assert proven(recording, inputs[1])
    outputs.append(recording.y.clone())
    outputs += [recording(x).clone() for x in inputs[2:]]
    for x, played in zip(inputs, outputs, strict=True):
        y, state = mixer(x, state)
        same(played, y)
    same(own, state)


def proven(recording: Recording, x: Tensor | None = None) -> bool:
    return recording.prove(torch.ones(2, 1, 4) if x is None else x)[0]


COUNTER = torch.zeros(1)
BATCH_NORM = torch.nn.BatchNorm1d(4)


def recorded(step: Callable[[Tensor, Any], tuple[Tensor, Any]], state: Any = ()) -> Recording:
    return Recording(step, torch.randn(2, 1, 4), state)


def test_it_reads_its_own_input_and_overwrites_its_own_state() -> None:
    total, own = torch.zeros(2, 4), torch.randn(2, 1, 4)
    recording = Recording(lambda x, s: (2 * x, (s[0] + x[:, 0],)), own, (total,))
    sums = own[:, 0].clone()
    torch.testing.assert_close(total, sums)
    for other in (torch.randn(2, 1, 4), own, torch.randn(2, 1, 4)):
        x = other.normal_().clone()
        sums += x[:, 0]
        torch.testing.assert_close(recording(other), 2 * x)
        torch.testing.assert_close(total, sums)


def test_what_python_decides_is_found_out() -> None:
    count = iter(range(9))
    assert not proven(recorded(lambda x, s: (x + next(count), s)))
    assert proven(recorded(lambda x, s: (x + 1, s)))


def test_what_was_computed_beside_it_counts() -> None:
    """Where both differ, the one that Python computed is what the model says."""
    count = iter(range(9))
    recording = recorded(lambda x, s: (x + next(count), (s[0] + 1,)), (torch.zeros(2),))
    same_bits, y, after = recording.prove(torch.ones(2, 1, 4))
    assert not same_bits
    torch.testing.assert_close(y, torch.full((2, 1, 4), 2.0))
    torch.testing.assert_close(after[0], torch.full((2,), 2.0))


def test_a_state_that_is_not_the_same_is_found_out() -> None:
    seen = []

    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        seen.append(x)
        return x, (state[0] + len(seen),)

    assert not proven(recorded(step, (torch.zeros(2),)))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (lambda x, s: (x * x.sum().item(), s), "_local_scalar_dense"),
        (lambda x, s: (x * max(x.flatten().tolist()), s), "takes numbers out of tensors"),
        (lambda x, s: (x * float(x.numpy().max()), s), "takes numbers out of tensors"),
        (lambda x, s: (x * float(np.asarray(x).max()), s), "takes numbers out of tensors"),
        (lambda x, s: (x + x.data_ptr() % 2, s), "takes numbers out of tensors"),
        (lambda x, s: (x + torch.rand(2, 1, 4), s), "cannot be played again"),
        (lambda x, s: (torch.dropout(x, 0.5, True), s), "cannot be played again"),
        (lambda x, s: (BATCH_NORM(x[:, 0]), s), "cannot be played again"),
        (lambda x, s: (x + COUNTER.add_(1), s), "writes on what is not its own"),
        (lambda x, s: (x.mul_(2), s), "writes on what is not its own"),
        (lambda x, s: (x.new_zeros(3 << 20), s), "makes more than 8 MB"),
        (lambda x, s: (x[x > 0], s), "cannot be played again"),
        (lambda x, s: (x, (s[0][:1], s[1])), "changes its shape"),
        (lambda x, s: (x, (s[0].double(), s[1])), "changes its shape"),
        (lambda x, s: (x, (s[1], s[0])), "change places"),
        (lambda x, s: (x, (s[0],)), "changes what its state consists of"),
    ],
)
def test_what_cannot_be_played_is_refused(step: Callable[[Tensor, Any], tuple[Tensor, Any]], message: str) -> None:
    running = BATCH_NORM.running_mean
    assert running is not None
    before = [COUNTER.clone(), running.clone()]
    with pytest.raises(BackendError, match=message):
        recorded(step, (torch.zeros(2, 4), torch.ones(2, 4)))
    assert torch.equal(COUNTER, before[0])
    assert torch.equal(running, before[1])
    assert not overwrites()
    assert not observed()
    assert calling.listener is None


def test_a_state_is_not_looked_at_after_an_operator_has_overwritten_it() -> None:
    q, k, v, beta = (torch.rand(2, 1, 1, 4) for _ in range(4))

    def reads_twice(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        first, _ = gated_delta(q, k, v, beta[..., 0], state=state[0], return_state=True)
        second, after = gated_delta(q, k, v, beta[..., 0], state=state[0], return_state=True)
        return first + second, (after,)

    def looks_back(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        output, after = gated_delta(q, k, v, beta[..., 0], state=state[0], return_state=True)
        return output + (after - state[0]).sum(), (after,)

    for step in (reads_twice, looks_back):
        with pytest.raises(BackendError, match="looks at a state that is overwritten"):
            recorded(step, (torch.zeros(2, 1, 4, 4),))


def test_an_interruption_leaves_nothing_behind() -> None:
    def interrupted(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        torch.utils._python_dispatch.TorchDispatchMode.__enter__(Nothing())  # as if it had hit between entry and body
        raise KeyboardInterrupt

    class Nothing(torch.utils._python_dispatch.TorchDispatchMode):
        pass

    with pytest.raises(KeyboardInterrupt):
        recorded(interrupted)
    assert not observed()
    assert torch._C._len_torch_function_stack() == 0
    assert calling.listener is None
    assert (torch.ones(2).sum() > 1).item()


def test_a_conjugate_is_copied_as_what_it_stands_for() -> None:
    state = torch.randn(2, 4, dtype=torch.complex64)
    recording = recorded(lambda x, s: (x + s[0].conj().clone().imag[:, None], s), (state,))
    assert proven(recording)


def test_what_follows_from_parameters_is_no_part_of_it() -> None:
    calls = []

    def doubled(parameter: Tensor) -> Tensor:
        calls.append(parameter)
        return 2 * parameter

    weight = torch.nn.Parameter(torch.randn(4))
    with keeping({}):
        recording = recorded(lambda x, s: (x * constant(weight, doubled), s))
        assert proven(recording)
    assert len(calls) == 1
    names = [getattr(call, "__name__", "") for call in recording._calls]
    assert len(recording._calls) == 1, names


def test_states_are_only_overwritten_where_it_is_allowed() -> None:
    for name in ("mamba", "gated_deltanet", "gla", "linear_attention"):
        mixer = make(name, {}, torch.float32)
        x = torch.randn(1, 1, WIDTH)
        state = mixer.init_state(1)
        before = clones(state)
        _, after = mixer(x, state)
        same(state, before)
        with overwriting():
            own = clones(state)
            _, found = mixer(x, own)
            assert all(a is b for a, b in zip(leaves(found), leaves(own), strict=True))
            mixer(torch.randn(1, 2, WIDTH), state)
        same(own, after)
        same(state, before)
