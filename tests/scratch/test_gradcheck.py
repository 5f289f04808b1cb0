from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import InputError
from lavagna.scratch import check_gradients, difference


def test_difference_of_a_square_is_exact_but_for_rounding() -> None:
    theta = np.array([[1.0, 3.0], [-2.0, 0.5]])
    assert difference(lambda: float((theta**2).sum()), theta, 2) == pytest.approx(-4, abs=1e-9)
    assert theta.tolist() == [[1.0, 3.0], [-2.0, 0.5]]


def test_error_falls_with_the_square_of_epsilon() -> None:
    theta = np.array([1.0])
    errors = [abs(difference(lambda: float(np.exp(theta[0])), theta, 0, e) - np.e) for e in (1e-2, 1e-3)]
    assert errors[0] / errors[1] == pytest.approx(100, rel=1e-2)


def test_a_wrong_gradient_is_seen() -> None:
    theta = np.array([1.0, 2.0])
    found = list(check_gradients(lambda: float((theta**2).sum()), {"θ": theta}, {"θ": np.array([2.0, 4.4])}))
    assert [c.at for c in found] == [0, 1]
    assert found[0].error < 1e-8
    assert found[1].error == pytest.approx(0.4 / 4.4, rel=1e-6)


def test_chosen_coordinates() -> None:
    theta = np.arange(6.0)
    gradient = 2 * theta
    found = check_gradients(lambda: float((theta**2).sum()), {"θ": theta}, {"θ": gradient}, count=2, above=3.0)
    assert [(c.name, c.at) for c in found] == [("θ", 2), ("θ", 3)]


def test_a_kink_is_told() -> None:
    theta = np.array([1e-7, 1.0])
    found = list(
        check_gradients(
            lambda: float(np.maximum(theta, 0).sum()),
            {"θ": theta},
            {"θ": np.array([1.0, 1.0])},
            pattern=lambda: theta > 0,
        )
    )
    assert [c.kink for c in found] == [True, False]
    assert found[0].numeric == pytest.approx(0.55)  # a mixture of slope 0 and slope 1
    assert found[1].error < 1e-8


def test_the_parameter_is_put_back_when_the_function_raises() -> None:
    theta = np.array([1.0])

    def f() -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        difference(f, theta, 0)
    assert theta[0] == 1.0


def test_an_array_whose_copy_would_be_changed_is_refused() -> None:
    theta = np.zeros((2, 3)).T
    with pytest.raises(InputError, match="contiguous"):
        difference(lambda: 0.0, theta, 0)
