from __future__ import annotations

import pytest

from lavagna import errors
from lavagna.errors import LavagnaError, unknown_name

CLASSES = [getattr(errors, name) for name in errors.__all__ if isinstance(getattr(errors, name), type)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_error_has_one_base(kind: type[Exception]) -> None:
    assert issubclass(kind, LavagnaError)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.InputError, ValueError),
        (errors.ShapeError, ValueError),
        (errors.ConfigError, ValueError),
        (errors.DataError, ValueError),
        (errors.StateError, ValueError),
        (errors.BackendError, RuntimeError),
        (errors.NonFiniteError, ArithmeticError),
    ],
)
def test_each_is_also_the_builtin_that_callers_catch(kind: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(kind, builtin)


def test_an_unknown_name_is_met_with_the_nearest_and_all_others() -> None:
    assert unknown_name("mixer", "mabma", ["attention", "mamba"]) == (
        "unknown mixer 'mabma'; did you mean 'mamba'? (known: attention, mamba)"
    )


def test_even_a_name_like_no_other_is_met_with_one() -> None:
    assert "did you mean" in unknown_name("mixer", "zzz", iter(["attention", "mamba"]))


def test_where_nothing_is_known_nothing_is_proposed() -> None:
    assert unknown_name("form", "chunk", []) == "unknown form 'chunk' (known: none)"
