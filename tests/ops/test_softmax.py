"""attention and its cache: numbers by hand, masks, groups, and states that never change."""

from __future__ import annotations

import math

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError, StateError
from lavagna.ops import attention
from lavagna.ops.dispatch import Result
from lavagna.ops.softmax.cache import KVCache
from lavagna.ops.tree import concatenate, leaves, map_tensors, named_leaves, nbytes, select

from ..support.largest import Largest

IMPLS = ("torch", "reference")
each_impl = pytest.mark.parametrize("impl", IMPLS)


def draw(
    B: int, T: int, H: int = 4, G: int = 2, K: int = 8, V: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(B, T, *shape).to(dtype) for shape in ((H, K), (G, K), (G, V)))


def tokens(x: tuple[Tensor, ...], start: int, stop: int) -> tuple[Tensor, ...]:
    return tuple(t[:, start:stop] for t in x)


def read(x: tuple[Tensor, ...], state: KVCache | None = None, **more: object) -> Result:
    return attention(*x, state=state, return_state=True, **more)


def snapshot(state: KVCache) -> list[Tensor]:
    return [t.clone() for t in leaves(state)]


def same(state: KVCache, expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(leaves(state), expected, strict=True))


def assert_same(state: KVCache, expected: KVCache) -> None:
    for (name, got), wanted in zip(named_leaves(state), leaves(expected), strict=True):
        assert torch.equal(got, wanted), name


def left_aligned(k: Tensor, mask: Tensor, b: int) -> Tensor:
    return k[b, mask[b]][None]


# Numbers by hand -------------------------------------------------------------------------------------------


@each_impl
def test_two_tokens_by_hand(impl: str) -> None:
    """The second token sees keys 0 and ln 3 with a query of 1: weights ¼ and ¾."""
    q = torch.tensor([5.0, 1.0], dtype=torch.float64).reshape(1, 2, 1, 1)
    k = torch.tensor([0.0, math.log(3)], dtype=torch.float64).reshape(1, 2, 1, 1)
    v = torch.tensor([[4.0, 0.0], [8.0, 1.0]], dtype=torch.float64).reshape(1, 2, 1, 2)
    output, state = attention(q, k, v, return_state=True, impl=impl)
    torch.testing.assert_close(output[0, :, 0], torch.tensor([[4.0, 0.0], [7.0, 0.75]], dtype=torch.float64))
    assert torch.equal(state.keys, k)
    assert torch.equal(state.values, v)
    assert state.seen.tolist() == [2]
    full = attention(q, k, v, causal=False, impl=impl).output[0, :, 0]
    first = 3.0**5 / (1 + 3.0**5)  # the first query is 5, and sees both
    expected = torch.tensor([[4 + 4 * first, first], [7.0, 0.75]], dtype=torch.float64)
    torch.testing.assert_close(full, expected)


@each_impl
def test_the_scale_is_one_over_the_root_of_the_key_dimension(impl: str) -> None:
    """Four equal products of ½ ln 3 add up to 2 ln 3, halved by K = 4 to ln 3."""
    q = torch.full((1, 2, 1, 4), 1.0)
    k = torch.tensor([0.0, 0.5 * math.log(3)]).reshape(1, 2, 1, 1).expand(1, 2, 1, 4)
    v = torch.tensor([0.0, 4.0]).reshape(1, 2, 1, 1)
    torch.testing.assert_close(attention(q, k, v, impl=impl).output[0, 1, 0, 0], torch.tensor(3.0))
    doubled = attention(q, k, v, scale=1.0, impl=impl).output[0, 1, 0, 0]  # weights 1 and 9
    torch.testing.assert_close(doubled, torch.tensor(3.6))


@each_impl
@pytest.mark.parametrize("T", [1, 3])
def test_neighbouring_heads_share_a_group(impl: str, T: int) -> None:
    """Head h reads group h // (H / G): with four heads and two groups 0, 0, 1, 1."""
    q, k, v = draw(1, T, H=4, G=2)
    v[:, :, 0], v[:, :, 1] = 1.0, 2.0
    assert attention(q, k, v, impl=impl).output[0, -1, :, 0].tolist() == pytest.approx([1, 1, 2, 2])


@each_impl
def test_a_window_of_one_reads_the_token_alone(impl: str) -> None:
    q, k, v = draw(2, 7, G=4)
    output, state = attention(q, k, v, window=1, return_state=True, impl=impl)
    torch.testing.assert_close(output, v)
    assert state.keys.shape == (2, 0, 4, 8)
    output, state = attention(q, k, v, window=1, state=state, return_state=True, impl=impl)
    torch.testing.assert_close(output, v)
    assert state.seen.tolist() == [14, 14]


@each_impl
def test_a_window_sees_itself_and_those_right_before_it(impl: str) -> None:
    """With keys of zero every visible token weighs the same."""
    q, k, v = draw(1, 6, H=1, G=1, V=1)
    v[0, :, 0, 0] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    output = attention(q, torch.zeros_like(k), v, window=2, impl=impl).output
    torch.testing.assert_close(output[0, :, 0, 0], torch.tensor([1.0, 1.5, 3.0, 6.0, 12.0, 24.0], dtype=torch.float64))


def test_large_logits_stay_finite() -> None:
    """Logits of ±1e5: the softmax is one-hot, its gradients are zero or exact."""
    x = [t.requires_grad_() for t in draw(2, 30, dtype=torch.float32)]
    output = attention(x[0], x[1], x[2], scale=1e5).output
    exact = attention(*(t.detach().double() for t in x), scale=1e5, impl="reference").output
    torch.testing.assert_close(output.double(), exact, atol=1e-4, rtol=0)
    for gradient in torch.autograd.grad(output.sum(), x):
        assert torch.isfinite(gradient).all()


# Tokens that are none --------------------------------------------------------------------------------------


def masks(T: int) -> Tensor:
    """Padding on the left, on the right, holes, nothing real, nothing padded."""
    mask = torch.ones(5, T, dtype=torch.bool)
    mask[0, :3] = False
    mask[1, -4:] = False
    mask[2, 1::2] = False
    mask[3] = False
    return mask


@each_impl
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": False}], ids=str)
def test_a_masked_row_equals_its_real_tokens_alone(impl: str, options: dict[str, object]) -> None:
    T, mask = 9, masks(9)
    x = [t.requires_grad_() for t in draw(5, T)]
    causal = options.get("causal", True)
    state = read(draw(5, 2)).state if causal else None
    noisy = [torch.where(mask[..., None, None], t, torch.nan) for t in x]  # what is padded may be anything
    result = attention(*noisy, token_mask=mask, state=state, return_state=causal, impl=impl, **options)
    assert torch.equal(result.output[~mask], torch.zeros_like(result.output[~mask]))
    upstream = torch.randn_like(result.output)
    gradients = torch.autograd.grad(result.output, x, upstream)
    for b in range(5):
        alone = [left_aligned(t, mask, b) for t in x]
        before = None if state is None else select(state, torch.tensor([b]))
        expected = attention(*alone, state=before, return_state=causal, impl="reference", **options)
        torch.testing.assert_close(result.output[b, mask[b]][None], expected.output)
        if causal:
            assert_same(select(result.state, torch.tensor([b])), expected.state)
        if mask[b].any():
            wanted = torch.autograd.grad(expected.output, x, upstream[b, mask[b]][None])
        else:
            wanted = [torch.zeros_like(t) for t in x]
        for got, want in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(got[b], want[b])


def test_a_mask_of_real_tokens_alone_is_no_mask() -> None:
    x = draw(2, 6)
    plain = read(x)
    masked = read(x, token_mask=torch.ones(2, 6, dtype=torch.bool))
    assert torch.equal(plain.output, masked.output)
    assert_same(masked.state, plain.state)


def test_nothing_real_at_all() -> None:
    output, state = read(draw(2, 6), token_mask=torch.zeros(2, 6, dtype=torch.bool))
    assert not output.any()
    assert state.keys.shape == (2, 0, 2, 8)
    assert state.seen.tolist() == [0, 0]


@each_impl
def test_padding_inside_packed_sequences(impl: str) -> None:
    x, mask, bounds = draw(1, 9), torch.ones(1, 9, dtype=torch.bool), torch.tensor([0, 4, 4, 9])
    mask[0, [1, 4, 8]] = False
    output, state = attention(*x, token_mask=mask, cu_seqlens=bounds, return_state=True, impl=impl)
    kept = tuple(t[:, mask[0]] for t in x)
    expected = read(kept, cu_seqlens=torch.tensor([0, 3, 3, 6]))
    torch.testing.assert_close(output[:, mask[0]], expected.output)
    assert not output[:, ~mask[0]].any()
    assert_same(state, expected.state)


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_different_lengths_go_on_together(side: str) -> None:
    """A padded batch of prompts, then steps without a mask, equals each row alone."""
    lengths, steps = [7, 3, 5], 4
    x = draw(3, 7 + steps)
    rows = [tokens(tuple(t[b : b + 1] for t in x), 0, lengths[b] + steps) for b in range(3)]
    prompt = [torch.zeros(3, 7, *t.shape[2:], dtype=t.dtype) for t in x]
    mask = torch.zeros(3, 7, dtype=torch.bool)
    for b, n in enumerate(lengths):
        place = slice(0, n) if side == "right" else slice(7 - n, 7)
        mask[b, place] = True
        for whole, row in zip(prompt, rows[b], strict=True):
            whole[b, place] = row[0, :n]
    _, state = read(tuple(prompt), token_mask=mask)
    for i in range(steps):
        following = tuple(
            torch.cat([rows[b][part][:, n + i : n + i + 1] for b, n in enumerate(lengths)]) for part in range(3)
        )
        output, state = read(following, state)
        for b, n in enumerate(lengths):
            alone = read(tokens(rows[b], 0, n + i + 1))
            torch.testing.assert_close(output[b, 0], alone.output[0, -1])
            assert_same(select(state, torch.tensor([b])), alone.state)


# All tokens at once ----------------------------------------------------------------------------------------


@each_impl
def test_without_causality_every_token_is_seen(impl: str) -> None:
    q, k, v = draw(2, 9, G=4)
    weights = torch.einsum("bthk,bshk->bhts", q, k).div(8**0.5).softmax(-1)
    expected = torch.einsum("bhts,bshv->bthv", weights, v)
    torch.testing.assert_close(attention(q, k, v, causal=False, impl=impl).output, expected)


@each_impl
def test_without_causality_packed_sequences_do_not_meet(impl: str) -> None:
    x = draw(1, 10)
    bounds = torch.tensor([0, 0, 1, 4, 10])
    output = attention(*x, causal=False, cu_seqlens=bounds, impl=impl).output
    for a, b in ((0, 1), (1, 4), (4, 10)):
        torch.testing.assert_close(output[:, a:b], attention(*tokens(x, a, b), causal=False).output)


@each_impl
def test_without_causality_an_empty_batch_is_empty(impl: str) -> None:
    assert attention(*draw(2, 0), causal=False, impl=impl).output.shape == (2, 0, 4, 8)
    assert attention(*draw(0, 3), causal=False, impl=impl).output.shape == (0, 3, 4, 8)


def test_gradients_without_causality() -> None:
    x = [t.requires_grad_() for t in draw(1, 4)]
    mask = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(lambda *x: attention(*x, causal=False).output, x, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *x: attention(*x, causal=False, token_mask=mask).output, x, fast_mode=True)


# The state never changes -----------------------------------------------------------------------------------


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


def test_no_query_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that is padding: what torch makes of a row of −inf alone differs from kernel to kernel."""
    plain, masks = torch.nn.functional.scaled_dot_product_attention, []

    def watched(*x: Tensor, attn_mask: Tensor | None, **options: object) -> Tensor:
        masks.extend([] if attn_mask is None else [attn_mask])
        return plain(*x, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    mask = torch.ones(2, 50, dtype=torch.bool)
    mask[1] = False
    state = read(draw(2, 50), token_mask=mask).state
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[0, 4:] = False
    attention(*draw(2, 7), state=state, window=3, token_mask=mask)
    attention(*draw(2, 7), causal=False, token_mask=mask)
    assert len(masks) == 2
    assert all((mask > -torch.inf).any(-1).all() for mask in masks)


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


# Memory ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("T", "S", "K", "V", "window", "bound"),
    [
        (4096, 0, 8, 8, None, 4096 * 8),
        (4096, 0, 8, 4, None, 4096 * 8),
        (4096, 0, 8, 8, 100, 4096 * 8),
        (4096, 8192, 8, 8, None, 1 << 22),
    ],
    ids=["plain", "K-V", "window", "cache"],
)
def test_no_mask_of_all_tokens_squared(T: int, S: int, K: int, V: int, window: int | None, bound: int) -> None:
    """4096² is 16 million; forward and backward hold what is linear in T, or one mask of bounded size."""
    x = [t.requires_grad_(S == 0) for t in draw(1, T, H=1, G=1, K=K, V=V, dtype=torch.float32)]
    state = read(draw(1, S, H=1, G=1, K=K, V=V, dtype=torch.float32)).state if S else None
    with Largest() as largest:
        output = attention(*x, state=state, window=window).output
        if S == 0:
            torch.autograd.grad(output.sum(), x)
    assert largest.elements <= bound


# Clear refusal ---------------------------------------------------------------------------------------------


def test_refusals() -> None:
    x = draw(2, 5)
    with pytest.raises(ShapeError, match="multiple of the 2 of k and v, got 3"):
        attention(x[0][:, :, :3], x[1], x[2])
    with pytest.raises(InputError, match="an integer from 1 on, with causal=True, got 0"):
        attention(*x, window=0)
    with pytest.raises(InputError, match="got 3, causal=False"):
        attention(*x, window=3, causal=False)
    state = read(x).state
    with pytest.raises(InputError, match="a state needs causal=True"):
        attention(*x, causal=False, state=state)
    with pytest.raises(InputError, match="a state needs causal=True"):
        attention(*x, causal=False, return_state=True)
    with pytest.raises(StateError, match=r"dtype torch\.float32 of k and v, got torch\.float64 keys"):
        attention(*(t.float() for t in x), state=state)
    with pytest.raises(ShapeError, match=r"real floating dtype, got torch\.complex128"):
        attention(x[0].to(torch.complex128), *x[1:])


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": False}], ids=str)
def test_gradients_are_finite_for_logits_of_a_million(dtype: torch.dtype, options: dict) -> None:
    q, k, v = draw(2, 40, G=4)
    q = q * (1e6 / torch.einsum("bthk,bshk->bhts", q, k).abs().max())
    inputs = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    attention(*inputs, scale=1.0, **options).output.float().square().sum().backward()
    for x in inputs:
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("size", [1e6, 1e10, 1e20])
def test_outputs_are_right_whatever_the_size_of_the_logits(size: float) -> None:
    q, k, v = (x.float() for x in draw(2, 40))
    exact = attention(q.double() * size, k.double(), v.double(), impl="reference").output
    assert (attention(q * size, k, v, impl="torch").output - exact).abs().max() < 1e-5
