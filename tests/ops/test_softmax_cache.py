"""The cache of attention: states that never change, and what they hold in memory."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from lavagna.errors import StateError
from lavagna.ops import attention
from lavagna.ops.softmax.cache import KVCache
from lavagna.ops.tree import concatenate, map_tensors, named_leaves, nbytes, select

from ..support.softmax import assert_same, draw, each_impl, masks, read, same, snapshot, tokens

# The state never changes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("ragged", [False, True], ids=["level", "ragged"])
def test_one_state_is_continued_twice(window: int | None, ragged: bool) -> None:
    """Neither continuation sees the other, and the state they share stays as it was, bit for bit."""
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[1, 4:] = not ragged
    old = read(draw(2, 6), token_mask=mask, window=window).state
    old = read(draw(2, 1), old, window=window).state
    before = snapshot(old)
    branches, expected = [], []
    for _ in range(2):
        x = draw(2, 3)
        state = old
        for t in range(3):
            state = read(tokens(x, t, t + 1), state, window=window).state
        branches.append(state)
        expected.append(read(x, KVCache(*before), window=window, impl="reference").state)
    assert same(old, before)
    for got, wanted in zip(branches, expected, strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("window", [None, 4])
def test_forks_and_reordered_rows_go_their_own_way(window: int | None) -> None:
    old = read(draw(2, 5), window=window).state
    old = read(draw(2, 1), old, window=window).state
    derived = {
        "fork": map_tensors(lambda t: t.repeat_interleave(2, 0), old),
        "reorder": select(old, torch.tensor([1, 0, 1])),
        "clone": map_tensors(torch.clone, old),
        "same": map_tensors(lambda t: t, old),
    }
    before = {name: snapshot(state) for name, state in {**derived, "old": old}.items()}
    for state in [old, *derived.values()]:
        for _ in range(3):
            state = read(draw(len(state.lengths), 1), state, window=window).state
    for name, state in {**derived, "old": old}.items():
        assert same(state, before[name]), name


@hypothesis.given(data=st.data(), window=st.sampled_from([None, 1, 4]))
def test_any_history_of_states(data: st.DataObject, window: int | None) -> None:
    """Read on from any state made so far, by any number of tokens, padded or not, with gradients or without.

    Every state equals the one of a plain list of what its rows have read; none ever changes.
    """
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    histories: list[tuple[KVCache, list[Tensor], list[Tensor]]] = [
        (KVCache.empty(2, 1, 2, 3, torch.float64), [torch.zeros(0, 1, 2)] * 2, [torch.zeros(0, 1, 3)] * 2)
    ]
    snapshots = [snapshot(histories[0][0])]
    for _ in range(data.draw(st.integers(1, 10))):
        state, keys, values = histories[data.draw(st.integers(0, len(histories) - 1))]
        rows, T = len(keys), data.draw(st.sampled_from([1, 1, 1, 2, 6]))
        q, k, v = (torch.randn(rows, T, 1, d, generator=generator, dtype=torch.float64) for d in (2, 2, 3))
        mask = torch.ones(rows, T, dtype=torch.bool)
        if data.draw(st.booleans()):
            mask = torch.rand(rows, T, generator=generator) < 0.6
        k.requires_grad_(data.draw(st.booleans()))
        with torch.inference_mode(data.draw(st.booleans())):
            output, state = attention(q, k, v, token_mask=mask, window=window, state=state, return_state=True)
        keys = [torch.cat([old, k[b, mask[b]].detach()]) for b, old in enumerate(keys)]
        values = [torch.cat([old, v[b, mask[b]]]) for b, old in enumerate(values)]
        for b in range(rows):
            if mask[b, -1]:
                seen = slice(None) if window is None else slice(-window, None)
                weights = (keys[b][seen, 0] @ q[b, -1, 0] * 2**-0.5).softmax(0)
                torch.testing.assert_close(output[b, -1, 0].detach(), weights @ values[b][seen, 0])
        if data.draw(st.booleans()):
            order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=3))
            state = select(state, torch.tensor(order))
            keys, values = [keys[b] for b in order], [values[b] for b in order]
        histories.append((state, keys, values))
        snapshots.append(snapshot(state))
    for (state, keys, values), before in zip(histories, snapshots, strict=True):
        assert same(state, before)
        assert state.seen.tolist() == [len(x) for x in keys]
        for b, length in enumerate(state.lengths):
            assert length == min(len(keys[b]), len(keys[b]) if window is None else window - 1)
            assert torch.equal(state.keys[b, :length].detach(), keys[b][len(keys[b]) - length :])
            assert torch.equal(state.values[b, :length].detach(), values[b][len(values[b]) - length :])
            assert not state.keys[b, length:].any()


@pytest.mark.parametrize("window", [None, 4, 40])
@pytest.mark.parametrize("trained", [False, True])
def test_what_the_caller_does_to_its_tensors_later_is_its_own_affair(window: int | None, trained: bool) -> None:
    x = draw(2, 6)
    x[0].requires_grad_(trained)
    state = read(x, window=window).state
    before = snapshot(state)
    with torch.no_grad():
        for t in x:
            t.zero_()
    assert same(state, before)


@each_impl
def test_rows_that_read_much_and_little_go_on_under_a_window(impl: str) -> None:
    """A row that had 50 tokens gets 4, one that had none gets 7: what pads the first sees no key, and no NaN."""
    x, mask = draw(2, 57), torch.ones(2, 50, dtype=torch.bool)
    mask[1] = False
    _, state = read(tokens(x, 0, 50), token_mask=mask)
    following = [t.requires_grad_() for t in tokens(x, 50, 57)]
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 4:] = False
    output = attention(*following, state=state, window=3, token_mask=mask, impl=impl).output
    expected = [attention(*tokens(x, 0, 54), window=3).output[0, 50:], attention(*following, window=3).output[1]]
    torch.testing.assert_close(output[mask], torch.cat(expected))
    for gradient in torch.autograd.grad(output.sum(), following):
        assert torch.isfinite(gradient).all()


def test_a_backward_pass_survives_steps_that_follow_without_gradients() -> None:
    x = [t.requires_grad_() for t in draw(1, 8)]
    _, state = read(tokens(x, 0, 6))
    output, state = read(tokens(x, 6, 7), state)
    with torch.no_grad():
        for _ in range(3):
            _, state = read(tokens(x, 7, 8), state)
    expected = attention(*tokens(x, 0, 7), impl="reference").output[:, 6:]
    for got, want in zip(torch.autograd.grad(output.sum(), x), torch.autograd.grad(expected.sum(), x), strict=True):
        torch.testing.assert_close(got, want)


def test_a_state_read_in_inference_mode_is_trained_on() -> None:
    x = draw(1, 6)
    with torch.inference_mode():
        _, state = read(tokens(x, 0, 4))
        _, state = read(tokens(x, 4, 5), state)
    q, k, v = (t.clone().requires_grad_() for t in tokens(x, 5, 6))
    output, _ = read((q, k, v), state)
    expected = attention(*x).output[:, 5:]
    torch.testing.assert_close(output, expected)
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(output.sum(), (q, k, v)))
    with torch.no_grad():  # and stepped on, outside of inference mode
        torch.testing.assert_close(read(tokens(x, 5, 6), state).output, expected)


def test_a_state_saved_by_name_is_the_same_state() -> None:
    state = read(draw(3, 9), token_mask=masks(9)[:3]).state
    saved = {name: t.clone() for name, t in named_leaves(state)}
    assert list(saved) == ["keys", "values", "seen"]
    order = iter(saved.values())
    assert_same(map_tensors(lambda _: next(order), KVCache.empty(3, 2, 8, 8, torch.float64)), state)


# Memory -----------------------------------------------------------------------------------------------------


def storages(state: KVCache) -> int:
    return state.keys.untyped_storage().data_ptr()


@torch.no_grad()
def test_a_step_does_not_copy_the_cache() -> None:
    """A thousand steps move the keys to other memory ten times at most: as often as they double."""
    _, state = read(draw(1, 3))
    places = set()
    for _ in range(1000):
        state = read(draw(1, 1), state).state
        places.add(storages(state))
    assert state.keys.shape[1] == 1003
    assert len(places) <= 10


@torch.no_grad()
def test_a_window_holds_constant_memory() -> None:
    _, state = read(draw(1, 500), window=16)
    assert state.keys.untyped_storage().nbytes() == state.keys.nbytes
    sizes = set()
    for _ in range(200):
        state = read(draw(1, 1), state, window=16).state
        assert state.keys.shape[1] == 15
        sizes.add(state.keys.untyped_storage().nbytes())
    assert max(sizes) <= 2 * 16 * state.keys[:, :1].nbytes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("window", [None, 10])
def test_bytes_are_those_of_the_formula(dtype: torch.dtype, window: int | None) -> None:
    """B·S·G·(K + V) numbers in the dtype of the inputs, and one count per row."""
    with torch.no_grad():
        _, state = read(draw(3, 40, V=12, dtype=dtype), window=window)
        for _ in range(5):
            state = read(draw(3, 1, V=12, dtype=dtype), state, window=window).state
    slots = 45 if window is None else 9
    assert {t.dtype for t in (state.keys, state.values)} == {dtype}
    assert nbytes(state) == 3 * slots * 2 * (8 + 12) * dtype.itemsize + 3 * 8


# Clear refusal ----------------------------------------------------------------------------------------------


def test_a_state_with_too_few_tokens_for_the_window() -> None:
    x = draw(1, 9)
    state = read(x, window=4).state
    with pytest.raises(StateError, match="window=5 needs the last 4 tokens, got a state that kept the last 3"):
        attention(*x, state=state, window=5)
    with pytest.raises(StateError, match="window=None needs all tokens"):
        attention(*x, state=state)
    narrower = attention(*x, state=state, window=3).output
    torch.testing.assert_close(narrower, attention(*x, state=read(x).state, window=3).output)
    with pytest.raises(StateError, match="keeps the last 3 of 9 beside one that keeps 9"):
        concatenate([state, read(x).state])


def test_keys_and_values_decide_the_dtype() -> None:
    """Or a float32 query would make a float32 copy of a bfloat16 cache at every step."""
    q, k, v = draw(1, 5, dtype=torch.float32)
    _, state = read((q, k.bfloat16(), v.bfloat16()))
    output, state = read((q, k.bfloat16(), v.bfloat16()), state)
    assert output.dtype == torch.float32
    assert state.keys.dtype == state.values.dtype == torch.bfloat16
    output, state = read((q.bfloat16(), k, v.bfloat16()))
    assert output.dtype == torch.bfloat16
    assert state.keys.dtype == state.values.dtype == torch.float32
    assert torch.equal(output, attention(q.bfloat16().float(), k, v.bfloat16().float()).output.bfloat16())
