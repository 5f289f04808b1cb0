"""gated_delta beside independent public implementations: flash-linear-attention's plain ones and transformers'.

Ours runs in float32 too, so that both sides round; T is a multiple of the peers' chunks where they need it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.ops import gated_delta

from ..support.budget import close
from ..support.fla import fla

pytestmark = pytest.mark.peers

forms = pytest.mark.parametrize("form", ["recurrent", "chunk"])

B, T, H, K, V = 2, 128, 2, 16, 5

#: two float32 computations of 128 tokens; a wrong formula is off by a hundredth and more
FLOAT32 = 1e-5


def draw(*decay: int, HV: int = H, beta: float = 1.0) -> dict[str, Tensor]:
    """The arguments of a call by name, log_decay of the shape `decay` if there is one."""
    tensors = {
        "q": torch.randn(B, T, H, K),
        "k": F.normalize(torch.randn(B, T, H, K), dim=-1),
        "v": torch.randn(B, T, HV, V),
        "beta": beta * torch.rand(B, T, HV),
        "state": torch.randn(B, HV, K, V),
    }
    if decay:
        tensors["log_decay"] = -torch.rand(decay)
    return {name: t.requires_grad_() for name, t in tensors.items()}


def ours(given: dict[str, Tensor], form: str, **options: Any) -> tuple[Tensor, Tensor]:
    return gated_delta(**given, return_state=True, form=form, **options)


def compare(given: dict[str, Tensor], ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor]) -> None:
    """Output and state, and every gradient of a random loss on both."""
    ups = [torch.randn_like(t) for t in ours]
    values = list(given.values())
    found = [*ours, *torch.autograd.grad(ours, values, ups)]
    expected = [*theirs, *torch.autograd.grad(theirs, values, ups)]
    for name, got, want in zip(["output", "final state", *given], found, expected, strict=True):
        close(name, got, want, FLOAT32)


@forms
@pytest.mark.parametrize("name", ["delta_rule_recurrence", "delta_rule_chunkwise"])
def test_delta_rule(form: str, name: str) -> None:
    """Heads come before time there, and the chunked one has no initial state."""
    given = draw(beta=2.0)
    state = given["state"] if name == "delta_rule_recurrence" else given.pop("state") * 0
    more = {"initial_state": state} if "state" in given else {}
    head_first = [given[n].transpose(1, 2) for n in ("q", "k", "v", "beta")]
    output, final = fla("delta_rule.naive", name)(*head_first, **more)
    compare(given, ours(given, form), (output.transpose(1, 2), final))


@forms
def test_gated_delta_rule_recurrent(form: str) -> None:
    given = draw(B, T, H)
    theirs = fla("gated_delta_rule.naive", "naive_recurrent_gated_delta_rule")(
        *(given[n] for n in ("q", "k", "v", "beta", "log_decay")),
        scale=0.7,
        initial_state=given["state"],
        output_final_state=True,
    )
    compare(given, ours(given, form, scale=0.7), theirs)


@forms
def test_gated_delta_rule_chunk(form: str) -> None:
    given = draw(B, T, H)
    theirs = fla("gated_delta_rule.naive", "naive_chunk_gated_delta_rule")(
        *(given[n] for n in ("q", "k", "v", "log_decay", "beta")),
        initial_state=given["state"],
        output_final_state=True,
    )
    compare(given, ours(given, form), theirs)


@forms
@pytest.mark.parametrize("name", ["naive_recurrent_kda", "naive_chunk_kda"])
@pytest.mark.parametrize("HV", [H, 2 * H])
def test_kda(form: str, name: str, HV: int) -> None:
    given = draw(B, T, HV, K, HV=HV)
    theirs = fla("kda.naive", name)(
        *(given[n] for n in ("q", "k", "v", "log_decay", "beta")),
        initial_state=given["state"],
        output_final_state=True,
    )
    compare(given, ours(given, form), theirs)


def transformers_function(model: str, name: str) -> Callable[..., Any]:
    """The plain torch function behind a name that may stand for a fast kernel."""
    return getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name).__wrapped__


def by_transformers(function: Callable[..., Any], given: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return function(
        *(given[n] for n in ("q", "k", "v")),
        g=given["log_decay"],
        beta=given["beta"],
        initial_state=given["state"],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )


def with_short_keys(given: dict[str, Tensor]) -> dict[str, Tensor]:
    with torch.no_grad():
        given["k"] *= torch.rand(B, T, H, 1)
    return given


@forms
@pytest.mark.parametrize("name", ["torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"])
def test_qwen3_next(form: str, name: str) -> None:
    given = with_short_keys(draw(B, T, 2 * H, HV=2 * H))
    theirs = by_transformers(transformers_function("qwen3_next", name), given)
    compare(given, ours(given, form, qk_l2norm=True), theirs)


@forms
@pytest.mark.parametrize("name", ["chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"])
def test_kimi_linear(form: str, name: str) -> None:
    given = with_short_keys(draw(B, T, H, K))
    theirs = by_transformers(transformers_function("kimi_linear", name), given)
    compare(given, ours(given, form, qk_l2norm=True), theirs)
