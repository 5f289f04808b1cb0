"""Checks of options that several mixers have."""

from __future__ import annotations

from ...errors import ConfigError

__all__ = ["at_least_one", "divide"]


def at_least_one(mixer: str, **options: int | None) -> None:
    """Refuse counts below one; None stands for a default.

    Raises:
        ConfigError: naming the option and its value.
    """
    for name, value in options.items():
        if value is not None and value < 1:
            raise ConfigError(f"{mixer}: {name} must be at least 1, got {value}")


def divide(mixer: str, whole: str, size: int, parts: str, count: int) -> int:
    """size / count, which must be whole.

    Raises:
        ConfigError: `size` (called `whole` in the message) is no multiple of `count` (called `parts`).
    """
    if count < 1 or size % count:
        raise ConfigError(f"{mixer}: {whole} must be a multiple of {parts}, got {size} and {count}")
    return size // count
