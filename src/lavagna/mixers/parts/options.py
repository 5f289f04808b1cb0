"""Checks of options that several mixers have."""

from __future__ import annotations

from typing import Any, get_args

from ...errors import ConfigError, unknown_name

__all__ = ["above_zero", "at_least_one", "divide", "one_of"]


def at_least_one(mixer: str, **options: int | None) -> None:
    """Refuse counts below one; None stands for a default.

    Raises:
        ConfigError: naming the option and its value.
    """
    for name, value in options.items():
        if value is not None and value < 1:
            raise ConfigError(f"{mixer}: {name} must be at least 1, got {value}")


def above_zero(mixer: str, **options: float) -> None:
    """Refuse numbers that are not above zero.

    Raises:
        ConfigError: naming the option and its value.
    """
    for name, value in options.items():
        if not value > 0:
            raise ConfigError(f"{mixer}: {name} must be above 0, got {value}")


def one_of(mixer: str, choices: Any, **options: str) -> None:
    """Refuse names that are none of a Literal's.

    Raises:
        ConfigError: naming the nearest known one.
    """
    for name, value in options.items():
        if value not in get_args(choices):
            raise ConfigError(f"{mixer}: {unknown_name(name, value, get_args(choices))}")


def divide(mixer: str, whole: str, size: int, parts: str, count: int) -> int:
    """size / count, which must be whole.

    Raises:
        ConfigError: `size` (called `whole` in the message) is no multiple of `count` (called `parts`).
    """
    if count < 1 or size % count:
        raise ConfigError(f"{mixer}: {whole} must be a multiple of {parts}, got {size} and {count}")
    return size // count
