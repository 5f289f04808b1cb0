"""The errors that Lavagna raises on purpose.

Each message is one sentence that names what was expected and what came.
The command line prints it and exits with status 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = [
    "BackendError",
    "ConfigError",
    "DataError",
    "InputError",
    "LavagnaError",
    "NonFiniteError",
    "ShapeError",
    "StateError",
    "unknown_name",
]


class LavagnaError(Exception):
    """Base of every error that Lavagna raises on purpose."""


class InputError(LavagnaError, ValueError):
    """An argument is outside of what the documentation allows."""


class ShapeError(InputError):
    """A tensor's shape, dtype or device does not fit the others."""


class ConfigError(InputError):
    """A configuration has an unknown key or a value that cannot be."""


class DataError(InputError):
    """A data source is empty, too short, missing or malformed."""


class StateError(InputError):
    """A state belongs to another model or to another batch."""


class BackendError(LavagnaError, RuntimeError):
    """A named form or implementation cannot run; the message lists every reason."""


class NonFiniteError(LavagnaError, ArithmeticError):
    """A loss or an activation stopped being finite during training."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that `name` is no known `kind`, naming the nearest known one.

    Args:
        kind: what the name should have been, e.g. "mixer" or "key of [model]".
        name: the name that came.
        known: all names that would have been accepted.

    Returns:
        One sentence for an error message.
    """
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    guess = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {kind} {name!r}{guess} (known: {', '.join(known) or 'none'})"
