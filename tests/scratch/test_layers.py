"""LayerNorm, linear layers, the feed-forward network and the block: by differences and against torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lavagna.scratch import (
    Heads,
    block,
    block_backward,
    block_parameters,
    causal_mask,
    layernorm,
    layernorm_backward,
)
from lavagna.scratch.block import Norm
from lavagna.scratch.feed_forward import feed_forward, feed_forward_backward
from lavagna.scratch.linear import linear, linear_backward

from .support import close, draw, gradients_agree, leaf, torch_block

d, d_ff = 6, 10


def parameters() -> dict[str, np.ndarray]:
    """Of a block; nothing is zero or one."""
    shapes = {
        **{f"W{name}": (d, d) for name in "qkvo"},
        **{f"b{name}": (d,) for name in "qkvo"},
        "W1": (d, d_ff),
        "b1": (d_ff,),
        "W2": (d_ff, d),
        "b2": (d,),
        **{f"{name}{i}": (d,) for name in ("gamma", "beta") for i in (1, 2)},
    }
    return {name: draw(*shape, seed=i) / 2 for i, (name, shape) in enumerate(shapes.items())}


def test_layernorm_equals_torch_with_its_gradients() -> None:
    arrays = draw(3, 4, 6), draw(6, seed=1), draw(6, seed=2)
    dy = draw(3, 4, 6, seed=3)
    theirs = [leaf(a) for a in arrays]
    expected = F.layer_norm(theirs[0], (6,), theirs[1], theirs[2], eps=1e-5)
    expected.backward(torch.from_numpy(dy))
    y, run = layernorm(*arrays)
    close(y, expected.detach())
    for ours, other in zip(layernorm_backward(dy, arrays[1], run), theirs, strict=True):
        close(ours, other.grad)


def test_gradient_of_layernorm() -> None:
    arguments = {"x": draw(2, 3, 5), "gamma": draw(5), "beta": draw(5, seed=1)}
    R = draw(2, 3, 5, seed=1)
    _, run = layernorm(**arguments)
    gradients = dict(zip(arguments, layernorm_backward(R, arguments["gamma"], run), strict=True))
    gradients_agree(lambda: float((layernorm(**arguments)[0] * R).sum()), arguments, gradients)


def test_layernorm_of_a_constant_token_is_its_bias() -> None:
    y, run = layernorm(np.full((1, 4), 7.0), draw(4), draw(4, seed=1))
    close(y[0], draw(4, seed=1))
    assert np.isfinite(layernorm_backward(draw(1, 4), draw(4), run)[0]).all()


def test_gradient_of_linear() -> None:
    arguments = {"x": draw(2, 3, 4), "W": draw(4, 5), "b": draw(5)}
    R = draw(2, 3, 5)
    gradients = dict(zip(arguments, linear_backward(R, arguments["x"], arguments["W"]), strict=True))
    gradients_agree(lambda: float((linear(**arguments) * R).sum()), arguments, gradients)


def test_gradient_of_the_feed_forward_network() -> None:
    x, p, R = draw(2, 3, d), parameters(), draw(2, 3, d, seed=1)
    p = {name: p[name] for name in ("W1", "b1", "W2", "b2")}
    _, run = feed_forward(x, p)
    assert 0 < (run.a > 0).mean() < 1
    dx, gradients = feed_forward_backward(R, p, run)
    gradients_agree(lambda: float((feed_forward(x, p)[0] * R).sum()), {"x": x, **p}, {"x": dx, **gradients})


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradient_of_the_block(norm: Norm) -> None:
    x, p, R = draw(2, 3, d), parameters(), draw(2, 3, d, seed=1)
    heads, mask = Heads(2, 2), causal_mask(3)
    _, run = block(x, p, norm, heads, mask)
    dx, gradients = block_backward(R, p, norm, heads, run)
    gradients_agree(lambda: float((block(x, p, norm, heads, mask)[0] * R).sum()), {"x": x, **p}, {"x": dx, **gradients})


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_block_equals_torch_with_every_gradient(norm: Norm) -> None:
    x, p, dy = draw(2, 5, d), parameters(), draw(2, 5, d, seed=1)
    layer = torch_block(p, norm, 2)
    their_x = leaf(x)
    expected = layer(their_x, src_mask=torch.from_numpy(~causal_mask(5)), is_causal=True)
    expected.backward(torch.from_numpy(dy))

    heads = Heads(2, 2)
    y, run = block(x, p, norm, heads, causal_mask(5))
    dx, gradients = block_backward(dy, p, norm, heads, run)
    close(y, expected.detach())
    close(dx, their_x.grad)
    grads = {name: parameter.grad.numpy() for name, parameter in layer.named_parameters()}
    for i, name in enumerate("qkv"):
        close(gradients[f"W{name}"], grads["self_attn.in_proj_weight"][i * d : (i + 1) * d].T)
        close(gradients[f"b{name}"], grads["self_attn.in_proj_bias"][i * d : (i + 1) * d])
    close(gradients["Wo"], grads["self_attn.out_proj.weight"].T)
    close(gradients["bo"], grads["self_attn.out_proj.bias"])
    for i in (1, 2):
        close(gradients[f"W{i}"], grads[f"linear{i}.weight"].T)
        close(gradients[f"b{i}"], grads[f"linear{i}.bias"])
        close(gradients[f"gamma{i}"], grads[f"norm{i}.weight"])
        close(gradients[f"beta{i}"], grads[f"norm{i}.bias"])


@pytest.mark.parametrize(("width", "expected"), [(64, 49_984), (256, 789_760), (512, 3_152_384)])
def test_parameters_of_a_block(width: int, expected: int) -> None:
    assert block_parameters(width) == expected
    torchs = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, device="meta")
    assert sum(p.numel() for p in torchs.parameters()) == expected
