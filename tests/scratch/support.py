"""What the tests of scratch share: draws, gradients against differences, and the torch side of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from lavagna.scratch import check_gradients


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def close(actual: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Equal shapes, and values that differ by at most the tolerance, absolutely."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def gradients_agree(
    f: Callable[[], float],
    arguments: Mapping[str, np.ndarray],
    gradients: Mapping[str, np.ndarray],
    *,
    tolerance: float = 1e-7,
) -> None:
    """Every coordinate of every gradient equals the centred difference of f."""
    assert gradients.keys() == arguments.keys()
    checked = 0
    for c in check_gradients(f, arguments, gradients, above=-1.0):
        assert abs(c.numeric - c.by_hand) <= tolerance * max(1, abs(c.numeric)), c
        checked += 1
    assert checked == sum(argument.size for argument in arguments.values())
    assert max(np.abs(gradient).max() for gradient in gradients.values()) > 1e-3  # not all zero


def torch_block(p: Mapping[str, np.ndarray], norm: str, heads: int) -> torch.nn.TransformerEncoderLayer:
    """Torch's own block with the parameters of ours."""
    d, d_ff = p["W1"].shape
    layer = torch.nn.TransformerEncoderLayer(
        d,
        heads,
        d_ff,
        dropout=0.0,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=torch.float64,
    )
    theirs = {
        "self_attn.in_proj_weight": np.concatenate([p["Wq"], p["Wk"], p["Wv"]], 1).T,
        "self_attn.in_proj_bias": np.concatenate([p["bq"], p["bk"], p["bv"]]),
        "self_attn.out_proj.weight": p["Wo"].T,
        "self_attn.out_proj.bias": p["bo"],
    }
    for i in (1, 2):
        theirs[f"linear{i}.weight"], theirs[f"linear{i}.bias"] = p[f"W{i}"].T, p[f"b{i}"]
        theirs[f"norm{i}.weight"], theirs[f"norm{i}.bias"] = p[f"gamma{i}"], p[f"beta{i}"]
    layer.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in theirs.items()})
    return layer


def leaf(array: np.ndarray) -> torch.Tensor:
    """A copy on the torch side, whose gradient is asked for."""
    return torch.from_numpy(array.copy()).requires_grad_()
