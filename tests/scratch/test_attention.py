from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lavagna.errors import InputError, ShapeError
from lavagna.scratch import attention, attention_backward, causal_mask, padding_mask, softmax, visible

from .support import close, draw, gradients_agree, leaf


def test_protocol_equals_torch() -> None:
    rng = np.random.default_rng(7)
    Q, K, V = (rng.normal(size=(2, 5, 8)) for _ in range(3))
    tensors = [torch.from_numpy(x) for x in (Q, K, V)]
    close(attention(Q, K, V)[0], F.scaled_dot_product_attention(*tensors), 1e-14)
    close(attention(Q, K, V, causal_mask(5))[0], F.scaled_dot_product_attention(*tensors, is_causal=True), 1e-14)


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
@pytest.mark.parametrize("masked", [False, True])
def test_output_and_gradients_equal_torch(scale: float | None, masked: bool) -> None:
    Q, K, V, dO = draw(2, 3, 4, 6), draw(2, 3, 5, 6), draw(2, 3, 5, 7), draw(2, 3, 4, 7)
    mask = visible(causal_mask(4, 5), padding_mask([5, 3], 5)) if masked else None
    theirs = [leaf(x) for x in (Q, K, V)]
    seen = None if mask is None else torch.from_numpy(np.broadcast_to(mask, (2, 3, 4, 5)).copy())
    expected = F.scaled_dot_product_attention(*theirs, attn_mask=seen, scale=scale)
    expected.backward(torch.from_numpy(dO))
    O, A = attention(Q, K, V, mask, scale)
    close(O, expected.detach())
    for ours, other in zip(attention_backward(dO, Q, K, V, A, scale), theirs, strict=True):
        close(ours, other.grad)


@pytest.mark.parametrize("masked", [False, True])
def test_gradient(masked: bool) -> None:
    arguments = {"Q": draw(2, 3, 4), "K": draw(2, 5, 4), "V": draw(2, 5, 2)}
    R, mask = draw(2, 3, 2, seed=1), causal_mask(3, 5) if masked else None
    _, A = attention(**arguments, mask=mask)
    gradients = dict(zip("QKV", attention_backward(R, *arguments.values(), A), strict=True))
    gradients_agree(lambda: float((attention(**arguments, mask=mask)[0] * R).sum()), arguments, gradients)


def test_hidden_keys_and_values_have_no_gradient() -> None:
    Q, K, V, dO = draw(4, 3), draw(4, 3), draw(4, 3, seed=1), np.zeros((4, 3))
    dO[1] = 1.0  # only token 1 is asked
    _, A = attention(Q, K, V, causal_mask(4))
    _, dK, dV = attention_backward(dO, Q, K, V, A)
    assert not dK[2:].any()
    assert not dV[2:].any()
    assert dV[:2].all()


def test_masks_by_hand() -> None:
    assert causal_mask(3).astype(int).tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert causal_mask(2, 4).astype(int).tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert padding_mask([3, 0, 2], 3).astype(int).tolist() == [[1, 1, 1], [0, 0, 0], [1, 1, 0]]


def test_protocol_masks_combined() -> None:
    mask = visible(causal_mask(5), padding_mask([5, 3], 5))
    assert mask.shape == (2, 1, 5, 5)
    assert [np.flatnonzero(row).tolist() for row in mask[1, 0]] == [[0], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2]]
    assert [np.flatnonzero(row).tolist() for row in mask[0, 0]] == [list(range(t + 1)) for t in range(5)]


def test_one_mask_or_none() -> None:
    Q = draw(2, 1, 3, 4)
    close(attention(Q, Q, Q, visible(None, None))[0], attention(Q, Q, Q)[0], 0)
    close(attention(Q, Q, Q, visible(causal_mask(3), None))[0], attention(Q, Q, Q, causal_mask(3))[0], 0)
    O, _ = attention(Q, Q, Q, visible(None, padding_mask([3, 2], 3)))
    close(O[1], attention(Q, Q[:, :, :2], Q[:, :, :2])[0][1])


def test_masks_that_count_different_keys_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"as many keys, got \(5, 5\) and \(2, 4\)"):
        visible(causal_mask(5), padding_mask([4, 3], 4))


def test_protocol_mask_after_the_softmax() -> None:
    scores = np.random.default_rng(3).normal(size=(5, 5))
    wrong = softmax(scores) * causal_mask(5)
    right = softmax(np.where(causal_mask(5), scores, -np.inf))
    assert [f"{total:.3f}" for total in wrong.sum(-1)] == ["0.733", "0.031", "0.759", "0.874", "1.000"]
    assert f"{np.abs(wrong - right).max():.4f}" == "0.8317"
    close(right.sum(-1), np.ones(5))


SCALE = {  # d_k: variance, then deviation, maximum, entropy, Σ p(1 − p) without and with the scale
    8: ("7.98", "2.825 0.4240 2.0727 0.7203", "0.999 0.1063 3.6936 0.9596"),
    64: ("63.99", "8.000 0.7913 0.5835 0.2908", "1.000 0.1072 3.6861 0.9610"),
    512: ("512.59", "22.641 0.9303 0.1760 0.0998", "1.001 0.1075 3.6848 0.9611"),
}


@pytest.mark.parametrize("d_k", SCALE)
def test_protocol_scale(d_k: int) -> None:
    rng = np.random.default_rng(100 + d_k)
    Q, K = rng.normal(size=(400, 64, d_k)), rng.normal(size=(400, 64, d_k))
    raw = Q @ K.swapaxes(1, 2)
    variance, *expected = SCALE[d_k]
    assert f"{raw.var():.2f}" == variance
    for scale, line in zip((1.0, 1 / math.sqrt(d_k)), expected, strict=True):
        _, p = attention(Q, K, np.zeros((400, 64, 1)), scale=scale)
        entropy = -(p * np.log(p + 1e-300)).sum(-1).mean()
        numbers = p.max(-1).mean(), entropy, (p * (1 - p)).sum(-1).mean()
        assert f"{(raw * scale).std():.3f} " + " ".join(f"{n:.4f}" for n in numbers) == line


def test_a_scale_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match="scale must be finite, got nan"):
        attention(draw(2, 2), draw(2, 2), draw(2, 2), scale=math.nan)
