"""short_conv against the convolutions of transformers' Mamba and of mambapy."""

from __future__ import annotations

import pytest
import torch

from lavagna.ops import short_conv

pytestmark = pytest.mark.peers


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_transformers(bias: bool, activation: str | None) -> None:
    """Channels come first there, and a state has W columns of which the oldest is never used."""
    from transformers.models.mamba import modeling_mamba

    prefill = modeling_mamba.causal_conv1d_fn.__wrapped__
    continued = modeling_mamba.causal_conv1d_update.__wrapped__
    x, weight = torch.randn(2, 13, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    offset = torch.randn(6, dtype=torch.float64) if bias else None

    output, state = short_conv(x[:, :9], weight, offset, activation=activation, return_state=True)
    torch.testing.assert_close(output, prefill(x[:, :9].mT, weight, offset, activation).mT)

    theirs = x[:, 5:9].mT.contiguous()
    for start, stop in ((9, 10), (10, 13)):  # one token, then several
        output, state = short_conv(
            x[:, start:stop], weight, offset, activation=activation, state=state, return_state=True
        )
        expected = continued(x[:, start:stop].mT, theirs, weight, offset, activation).mT
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(state, theirs[..., 1:].mT)


def test_mambapy() -> None:
    """Its block holds the convolution as a module; its step keeps W − 1 inputs, as the state here does."""
    from mambapy.mamba import MambaBlock, MambaConfig

    block = MambaBlock(MambaConfig(d_model=4, n_layers=1, use_cuda=False))
    weight, offset = block.conv1d.weight[:, 0], block.conv1d.bias
    x = torch.randn(2, 9, weight.shape[0])
    output, state = short_conv(x, weight, offset, return_state=True)
    torch.testing.assert_close(output, block.conv1d(x.mT)[..., :9].mT)
    token = torch.randn(2, 1, weight.shape[0])
    step, _ = short_conv(token, weight, offset, state=state)
    torch.testing.assert_close(step, block.conv1d(torch.cat([x[:, -3:], token], 1).mT)[..., 3:4].mT)
