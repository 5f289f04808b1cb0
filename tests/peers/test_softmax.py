"""attention against transformers' eager attention with its masks, and against torch's grouped attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.ops import attention

pytestmark = pytest.mark.peers


def draw(T: int, H: int = 6, G: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(3, T, heads, 8, dtype=torch.float64) for heads in (H, G, G))


def eager(q: Tensor, k: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """Llama's attention; heads come before time there, and a mask is added to the logits."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    module = SimpleNamespace(num_key_value_groups=q.shape[2] // k.shape[2], training=False)
    mask = torch.zeros(visible.shape, dtype=q.dtype).masked_fill(~visible, -torch.inf)
    output, _ = eager_attention_forward(
        module, q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scaling=8**-0.5
    )
    return output


def visible(mask_function, T: int, S: int) -> Tensor:
    """A mask function of transformers on all queries and keys; the T queries are the last of S tokens."""
    index = torch.arange
    mask = mask_function(
        index(3)[:, None, None, None],
        index(1)[None, :, None, None],
        index(S - T, S)[None, None, :, None],
        index(S)[None, None, None, :],
    )
    return torch.as_tensor(mask).expand(3, 1, T, S)


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("G", [1, 2, 6])
def test_transformers_eager_attention(window: int | None, G: int) -> None:
    """Groups in the same order, and a window of w that sees the token and w − 1 before it; whole and in pieces."""
    from transformers.masking_utils import causal_mask_function, sliding_window_causal_mask_function

    mask_function = causal_mask_function if window is None else sliding_window_causal_mask_function(window)
    q, k, v = draw(11, G=G)
    expected = eager(q, k, v, visible(mask_function, 11, 11))
    torch.testing.assert_close(attention(q, k, v, window=window).output, expected, atol=1e-6, rtol=1e-6)
    state, pieces = None, []
    for start, stop in ((0, 5), (5, 6), (6, 11)):
        piece, state = attention(
            q[:, start:stop], k[:, start:stop], v[:, start:stop], window=window, state=state, return_state=True
        )
        pieces.append(piece)
    # The softmax runs in float32 there.
    torch.testing.assert_close(torch.cat(pieces, 1), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_transformers_padding(causal: bool) -> None:
    """True is a real token in transformers' masks too."""
    from transformers.masking_utils import (
        and_masks,
        bidirectional_mask_function,
        causal_mask_function,
        padding_mask_function,
    )

    q, k, v = draw(9)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, :4], mask[1, 6:] = False, False
    base = causal_mask_function if causal else bidirectional_mask_function
    expected = eager(q, k, v, visible(and_masks(base, padding_mask_function(mask)), 9, 9))
    output = attention(q, k, v, causal=causal, token_mask=mask).output
    torch.testing.assert_close(output[mask], expected[mask], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_torch_grouped_attention(causal: bool) -> None:
    x = [t.requires_grad_() for t in draw(20)]
    expected = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in x), is_causal=causal, enable_gqa=True
    ).transpose(1, 2)
    output = attention(*x, causal=causal).output
    torch.testing.assert_close(output, expected)
    upstream = torch.randn_like(expected)
    for got, want in zip(
        torch.autograd.grad(output, x, upstream), torch.autograd.grad(expected, x, upstream), strict=True
    ):
        torch.testing.assert_close(got, want)
