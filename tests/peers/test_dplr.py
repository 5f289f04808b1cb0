"""generalized_delta beside flash-linear-attention: there heads come before time, and the scale is K^-0.5."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lavagna.ops import generalized_delta

from ..support.budget import close
from ..support.fla import fla

pytestmark = pytest.mark.peers

#: two float32 computations of 64 tokens; a wrong formula is off by a hundredth and more
FLOAT32 = 1e-5


@pytest.mark.parametrize("form", ["recurrent", "chunk"])
@pytest.mark.parametrize("name", ["dplr_recurrence", "dplr_chunkwise"])
def test_fla(form: str, name: str) -> None:
    B, T, H, K, V = 2, 64, 3, 16, 5
    kappa = F.normalize(torch.randn(B, T, H, K), dim=-1)
    given = {
        "q": torch.randn(B, T, H, K),
        "k": torch.randn(B, T, H, K),
        "v": torch.randn(B, T, H, V),
        "a": -kappa,
        "b": kappa * torch.rand(B, T, H, K),
        "log_decay": -torch.rand(B, T, H, K),
        "state": torch.randn(B, H, K, V),
    }
    given = {n: t.requires_grad_() for n, t in given.items()}
    head_first = [t.transpose(1, 2) for n, t in given.items() if n != "state"]
    output, final = fla("generalized_delta_rule.dplr.naive", name)(*head_first, initial_state=given["state"])
    theirs = (output.transpose(1, 2), final)
    ours = generalized_delta(**given, return_state=True, form=form)

    ups = [torch.randn_like(t) for t in ours]
    values = list(given.values())
    found = [*ours, *torch.autograd.grad(ours, values, ups)]
    expected = [*theirs, *torch.autograd.grad(theirs, values, ups)]
    for what, got, want in zip(["output", "final state", *given], found, expected, strict=True):
        close(what, got, want, FLOAT32)
