"""What every test starts from: one thread, fixed seeds, and memory in which nothing can hide."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported, and inherited by every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

import hypothesis
import numpy as np
import pytest
import torch

from lavagna import native

ROOT = Path(__file__).resolve().parents[1]

#: what the native kernels promise beyond the contracts, which means nothing without them
collect_ignore_glob = [] if native.available() else ["native/*", "ops/*_native.py", "ops/test_skinny_linear.py"]

hypothesis.settings.register_profile(
    "lavagna",
    derandomize=True,  # the same examples in every run
    database=None,
    deadline=None,  # a test holds no timings
    max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("lavagna")


@pytest.fixture(autouse=True)
def _same_start() -> Iterator[None]:
    """Give each test the same seeds, one thread, and fresh memory full of NaN.

    Under deterministic algorithms torch fills what `torch.empty` returns, and what its own operators
    allocate, with NaN (the largest value for integers): an element that nobody wrote is seen.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - peers draw from the global generator
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data: LAVAGNA_DATA, or ../shared/data beside the project."""
    folder = Path(os.environ.get("LAVAGNA_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the folder of real data, and {folder} is none; set LAVAGNA_DATA")
    return folder
