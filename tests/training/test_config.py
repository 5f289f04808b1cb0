"""The configuration of a run is strict."""

from __future__ import annotations

from typing import Any

import pytest

from lavagna.errors import ConfigError
from lavagna.training import TrainingConfig


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"step": 5}, r"unknown key of \[training\] 'step'; did you mean 'steps'"),
        ({"steps": 0}, r"\[training\]: steps: .*greater than or equal to 1, got 0"),
        ({"steps": "many"}, r"\[training\]: steps: .*got 'many'"),
        ({"learning_rate": 0}, r"learning_rate: .*greater than 0, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate: .*got nan"),
        ({"schedule": "linear"}, "schedule: .*'cosine' or 'wsd', got 'linear'"),
        ({"warmup": 0.9, "schedule": "wsd", "decay": 0.2}, "warmup and decay must not exceed all of the steps"),
        ({"carry_state": True, "accumulate": 2}, "carry_state goes with accumulate = 1"),
        ({"betas": [0.9, 1.0]}, r"betas must be at least 0 and below 1, got \(0.9, 1.0\)"),
        ({"dtype": "float16"}, "dtype: .*got 'float16'"),
        ({"validation_fraction": 1}, "validation_fraction: .*less than 1, got 1"),
    ],
)
def test_faults_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TrainingConfig.parse(values)
    assert "\n" not in str(caught.value)
