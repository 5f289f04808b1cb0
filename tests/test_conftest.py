"""What conftest.py promises every test."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_fresh_memory_is_nan(dtype: torch.dtype) -> None:
    like = torch.zeros(3, dtype=dtype)
    fresh = [
        torch.empty(3, dtype=dtype),
        torch.empty_like(like),
        like.new_empty(3),
        torch.empty_strided((2, 3), (1, 2), dtype=dtype),
        torch.empty(3, 2, dtype=dtype).mT.contiguous(),
    ]
    assert all(torch.isnan(tensor).all() for tensor in fresh)
    assert torch.isnan(like.resize_(5)[3:]).all()


def test_one_thread_here_and_in_processes_that_a_test_starts() -> None:
    assert torch.get_num_threads() == 1
    assert os.environ["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("time", [1, 2])
def test_random_numbers_are_the_same_each_time(time: int) -> None:
    torch_number, numpy_number = torch.rand(()).item(), np.random.rand()  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert torch_number == torch.rand(()).item()
    assert numpy_number == np.random.rand()  # noqa: NPY002


def test_real_data_is_there_where_its_folder_is(shared_data: Path) -> None:
    assert (shared_data / "text").is_dir()
