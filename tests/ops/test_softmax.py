"""attention: numbers by hand, large logits, masks, and groups."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError, StateError
from lavagna.ops import attention
from lavagna.ops.tree import select

from ..support.largest import Largest
from ..support.softmax import assert_same, draw, each_impl, left_aligned, masks, read, tokens

# Numbers by hand --------------------------------------------------------------------------------------------


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


# Large logits -----------------------------------------------------------------------------------------------


def test_large_logits_stay_finite() -> None:
    """Logits of ±1e5: the softmax is one-hot, its gradients are zero or exact."""
    x = [t.requires_grad_() for t in draw(2, 30, dtype=torch.float32)]
    output = attention(x[0], x[1], x[2], scale=1e5).output
    exact = attention(*(t.detach().double() for t in x), scale=1e5, impl="reference").output
    torch.testing.assert_close(output.double(), exact, atol=1e-4, rtol=0)
    for gradient in torch.autograd.grad(output.sum(), x):
        assert torch.isfinite(gradient).all()


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


# Tokens that are none ---------------------------------------------------------------------------------------


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


# All tokens at once -----------------------------------------------------------------------------------------


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


# Memory -----------------------------------------------------------------------------------------------------


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


# Clear refusal ----------------------------------------------------------------------------------------------


def test_refusals() -> None:
    x = draw(2, 5)
    with pytest.raises(ShapeError, match="multiple of the 2 of k and v, got 3"):
        attention(x[0][:, :, :3], x[1], x[2])
    with pytest.raises(InputError, match="window must be an integer from 1 on, got 0"):
        attention(*x, window=0)
    with pytest.raises(InputError, match="window needs causal=True, got window=3 with causal=False"):
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
