from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import ShapeError
from lavagna.shapes import Dims


def test_letters_take_the_sizes_of_the_first_tensor_and_hold_the_next_to_them() -> None:
    dims = Dims("op")
    dims.bind("q", np.zeros((2, 5, 3, 4)), "B T H K")
    assert dims.sizes == {"B": 2, "T": 5, "H": 3, "K": 4}
    dims.bind("v", np.zeros((2, 5, 6, 7)), "B T HV V")
    assert dims["HV"] == 6
    with pytest.raises(ShapeError) as caught:
        dims.bind("k", np.zeros((2, 6, 3, 4)), "B T H K")
    assert str(caught.value) == "op: k must have shape [B=2, T=5, H=3, K=4], got [2, 6, 3, 4]"


def test_the_first_pattern_that_fits_is_returned() -> None:
    dims = Dims("op", B=2, T=5, HV=6)
    assert dims.bind("log_decay", np.zeros(6), "HV", "B T HV", "B T HV K") == "HV"
    assert dims.bind("log_decay", np.zeros((2, 5, 6)), "HV", "B T HV", "B T HV K") == "B T HV"
    assert dims.bind("log_decay", np.zeros((2, 5, 6, 9)), "HV", "B T HV", "B T HV K") == "B T HV K"
    assert dims["K"] == 9


def test_when_no_pattern_fits_all_are_named_and_nothing_is_bound() -> None:
    dims = Dims("op", HV=6)
    with pytest.raises(ShapeError) as caught:
        dims.bind("log_decay", np.zeros((4, 5, 7)), "HV", "B T HV")
    assert str(caught.value) == "op: log_decay must have shape [HV=6] or [B, T, HV=6], got [4, 5, 7]"
    assert dims.sizes == {"HV": 6}


def test_a_letter_met_twice_in_one_pattern_is_one_size() -> None:
    Dims("op").bind("A", np.zeros((4, 4)), "K K")
    with pytest.raises(ShapeError, match=r"\[K, K\], got \[4, 5\]"):
        Dims("op").bind("A", np.zeros((4, 5)), "K K")


def test_a_digit_stands_for_itself() -> None:
    Dims("op").bind("x", np.zeros((1, 7)), "1 T")
    with pytest.raises(ShapeError, match=r"\[1, T\], got \[2, 7\]"):
        Dims("op").bind("x", np.zeros((2, 7)), "1 T")
    with pytest.raises(ShapeError, match=r"\[10, T\], got \[1, 7\]"):
        Dims("op").bind("x", np.zeros((1, 7)), "10 T")


def test_sizes_of_zero_are_sizes() -> None:
    dims = Dims("op")
    dims.bind("x", np.zeros((2, 0)), "B T")
    with pytest.raises(ShapeError, match=r"\[B=2, T=0\], got \[2, 1\]"):
        dims.bind("y", np.zeros((2, 1)), "B T")


def test_a_scalar_has_no_dimension() -> None:
    with pytest.raises(ShapeError, match=r"\[B\], got \[\]"):
        Dims("op").bind("x", np.zeros(()), "B")


@pytest.mark.parametrize("value", [1.0, [1, 2], None])
def test_what_has_no_shape_is_named_by_its_type(value: object) -> None:
    with pytest.raises(ShapeError, match=rf"op: x must be a tensor of shape \[B\], got {type(value).__name__}"):
        Dims("op").bind("x", value, "B")
