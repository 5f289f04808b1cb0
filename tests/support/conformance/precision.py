"""Half precision, by its parameters or by autocast."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from lavagna.models import ModelState
from lavagna.ops.softmax.cache import KVCache
from lavagna.ops.tree import leaves

from ..contracts import ROWS, Subject, in_pieces, random
from .binding import binds, narrowed


def check_near(name: str, got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Demand a root-mean-square error of at most ROUNDINGS · eps(dtype) of the exact values' own size.

    The largest error says little here: a norm of small numbers enlarges their rounding without bound.
    """
    assert torch.isfinite(got).all(), f"{name} is not finite"
    exact = exact.detach().double()
    far = (got.detach().double() - exact).norm() / exact.norm()
    bound = ROUNDINGS * torch.finfo(dtype).eps
    assert far <= bound, f"{name}: error {far:.3g} of its size, allowed {bound:.3g}"


#: each value is rounded a dozen times on its way through two blocks, half an epsilon each time
ROUNDINGS = 6

HALF = (torch.bfloat16, torch.float16)


def parts(state: Any) -> list[Any]:
    """The key-value caches of a state whole, and the tensors beside them."""
    if isinstance(state, KVCache):
        return [state]
    if isinstance(state, ModelState):
        return parts(tuple(state.layers))
    if isinstance(state, tuple):
        return [found for part in state for found in parts(part)]
    return leaves(state)


def recurrent(state: Any) -> list[Tensor]:
    """The tensors of a state, those of key-value caches left out."""
    return [part for part in parts(state) if not isinstance(part, KVCache)]


def caches(state: Any) -> list[KVCache]:
    """The key-value caches of a state."""
    return [part for part in parts(state) if isinstance(part, KVCache)]


def check_half_precision(subject: Subject, x: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Hold a subject in half precision to its output without rounding."""
    whole, state = subject(x)
    readings = {"output": whole}
    if "cut anywhere" not in subject.excepted:
        readings["pieces"], last = in_pieces(subject, x, None, (1, 2, 30))
        readings["pieces from the first state"], _ = in_pieces(subject, x, subject.module.init_state(ROWS), (1, 2, 30))
        for final in (state, last):
            assert {t.dtype for t in recurrent(final)} <= {torch.float32, torch.complex64, torch.int64}
            assert {t.dtype for cache in caches(final) for t in (cache.keys, cache.values)} <= {dtype}
    first, _ = subject(x, token_mask=torch.arange(40) >= torch.tensor([[0], [39]]))
    readings["row without padding"] = torch.cat([first[:1], whole[1:]])
    for name, output in readings.items():
        assert output.dtype == dtype
        check_near(name, output, exact, dtype)
    asked = {"x": x, **dict(subject.module.named_parameters())}
    found = torch.autograd.grad(whole.float().sum(), list(asked.values()), allow_unused=True)
    for (name, tensor), gradient in zip(asked.items(), found, strict=True):
        assert gradient is None or gradient.dtype == tensor.dtype
        if dtype == torch.bfloat16 and gradient is not None:  # float16 has no room for the slopes of a division
            assert torch.isfinite(gradient).all(), f"gradient of {name} is not finite"


@binds(subset=True)
def test_half_precision_parameters(subject: Subject) -> None:
    for dtype in HALF:
        half = narrowed(subject, dtype)
        x = random(ROWS, 40, subject.width, dtype=dtype)
        exact, _ = subject.on(copy.deepcopy(half).double())(x.double())
        check_half_precision(subject.on(half), x.requires_grad_(), exact, dtype)


def test_autocast(subject: Subject) -> None:
    narrow = subject.on(narrowed(subject, torch.float32))
    for dtype in HALF:
        x = random(ROWS, 40, subject.width, dtype=torch.float32)
        exact, _ = narrow(x)
        with torch.autocast("cpu", dtype=dtype):
            check_half_precision(narrow, x.requires_grad_(), exact, dtype)
