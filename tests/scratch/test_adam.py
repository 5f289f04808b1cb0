from __future__ import annotations

import numpy as np
import pytest
import torch

from lavagna.errors import InputError
from lavagna.scratch import Adam

from .support import close, draw


def test_equals_torch_over_many_steps() -> None:
    params = {"W": draw(3, 4), "b": draw(4)}
    theirs = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in params.items()}
    optimizer = torch.optim.Adam(theirs.values(), lr=1.0)
    adam = Adam(params)
    for step in range(20):
        gradients = {"b": draw(4, seed=step) * 10.0**-step, "W": draw(3, 4, seed=step)}
        rate = 1e-2 / (step + 1)
        for name, tensor in theirs.items():
            tensor.grad = torch.from_numpy(gradients[name].copy())
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        adam.step(gradients, rate)
        for name, value in params.items():
            close(value, theirs[name].detach())


def test_the_first_step_is_the_rate_along_the_sign() -> None:
    params = {"θ": np.zeros(3)}
    Adam(params).step({"θ": np.array([1e-3, -50.0, 0.0])}, 0.1)
    close(params["θ"], [-0.1, 0.1, 0.0], 1e-5)


def test_gradients_are_left_alone_and_parameters_changed_in_place() -> None:
    params, gradients = {"θ": draw(2, 3)}, {"θ": draw(2, 3, seed=1)}
    theta, before = params["θ"], gradients["θ"].copy()
    Adam(params).step(gradients, 0.1)
    assert params["θ"] is theta
    np.testing.assert_array_equal(gradients["θ"], before)


@pytest.mark.parametrize("gradients", [{}, {"θ": np.zeros(2), "φ": np.zeros(2)}])
def test_gradients_must_fit_the_parameters(gradients: dict[str, np.ndarray]) -> None:
    params = {"θ": np.ones(2)}
    with pytest.raises(InputError, match="no partner"):
        Adam(params).step(gradients, 0.1)
    np.testing.assert_array_equal(params["θ"], np.ones(2))
