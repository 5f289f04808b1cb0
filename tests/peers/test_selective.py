"""selective_scan beside independent public implementations: mambapy and transformers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lavagna.ops import selective_scan

from ..support.budget import close, close_all

pytestmark = pytest.mark.peers

forms = pytest.mark.parametrize("form", ["recurrent", "chunk"])


def draw(B: int = 2, T: int = 75, D: int = 6, N: int = 4) -> dict[str, Tensor]:
    normal = {"x": (B, T, D), "dt": (B, T, D), "B": (B, T, N), "C": (B, T, N), "D": (D,), "z": (B, T, D)}
    tensors = {name: torch.randn(shape, dtype=torch.float64) for name, shape in normal.items()}
    tensors["dt_bias"] = torch.randn(D, dtype=torch.float64)
    tensors["A"] = -torch.rand(D, N, dtype=torch.float64) * 3
    return {name: t.requires_grad_() for name, t in tensors.items()}


def gradients(y: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(y.shape, dtype=y.dtype, generator=generator)
    found = torch.autograd.grad((y * weight).sum(), list(given.values()))
    return dict(zip(given, found, strict=True))


@forms
@pytest.mark.parametrize("sequential", [False, True], ids=["pscan", "sequential"])
def test_mambapy(form: str, sequential: bool) -> None:
    from mambapy.mamba import MambaBlock, MambaConfig

    block = MambaBlock(MambaConfig(d_model=3, n_layers=1, d_state=4))
    scan = block.selective_scan_seq if sequential else block.selective_scan
    given = draw()
    used = {name: given[name] for name in ("x", "dt", "A", "B", "C", "D")}
    delta = torch.nn.functional.softplus(given["dt"])
    theirs = scan(used["x"], delta, used["A"], used["B"], used["C"], used["D"])
    ours = selective_scan(**used, dt_softplus=True, form=form).output
    close("y", ours, theirs, 1e-12)
    close_all(gradients(ours, used), gradients(theirs, used), 1e-11)


@forms
def test_transformers_scan(form: str) -> None:
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan

    given = draw()
    x, dt, B, C, z = (given[name].mT for name in ("x", "dt", "B", "C", "z"))
    theirs, state = mamba_selective_scan(
        x, dt, given["A"], B, C, given["D"], z, given["dt_bias"], delta_softplus=True, return_last_state=True
    )
    # It rounds Δ B x to float32 on the way.
    result = selective_scan(**given, dt_softplus=True, return_state=True, form=form)
    close("y", result.output, theirs.mT, 1e-6)
    close("h", result.state, state, 1e-6)
    close_all(gradients(result.output, given), gradients(theirs.mT, given), 1e-6)


def test_transformers_step() -> None:
    from transformers.models.mamba.modeling_mamba import mamba_selective_state_update

    given = {name: t.detach().float() for name, t in draw(T=5).items()}
    theirs, ours = torch.zeros(2, 6, 4), None
    for t in range(5):
        token = {name: given[name][:, t : t + 1] for name in ("x", "dt", "B", "C", "z")}
        x, dt, B, C, z = (part[:, 0] for part in token.values())
        expected = mamba_selective_state_update(
            theirs, x, dt, given["A"], B, C, D=given["D"], z=z, dt_bias=given["dt_bias"], dt_softplus=True
        )
        got, ours = selective_scan(**{**given, **token}, dt_softplus=True, state=ours, return_state=True)
        close("y", got[:, 0], expected, 1e-6)
        close("h", ours, theirs, 1e-6)
