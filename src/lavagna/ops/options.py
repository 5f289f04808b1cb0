"""Checks of options that several operators have."""

from __future__ import annotations

from ..errors import InputError

__all__ = ["check_count"]


def check_count(op: str, name: str, value: object, *, power_of_two: bool = False) -> None:
    """Refuse what is no count of tokens; None stands for a default.

    Args:
        op: the operator, for the message.
        name: of the option, for the message.
        value: what came.
        power_of_two: only 1, 2, 4, ... will do.

    Raises:
        InputError: `value` is no integer (True is none), is below one, or is no power of two where it must be.
    """
    if value is None:
        return
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if not whole or (power_of_two and value & (value - 1)):  # type: ignore[operator]
        kind = "a power of two" if power_of_two else "an integer from 1 on"
        raise InputError(f"{op}: {name} must be {kind}, got {value!r}")
