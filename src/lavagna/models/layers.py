"""Depth is data: a string such as ``2*(3*gated_deltanet+attention)`` is expanded once into a tuple of names."""

from __future__ import annotations

import re

from ..errors import ConfigError

__all__ = ["expand_layers"]

_TOKEN = re.compile(r"\s*(\d+|[A-Za-z_][A-Za-z_0-9]*|[*+()])")


def expand_layers(text: str) -> tuple[str, ...]:
    """Expand ``sum = term {+ term}``, ``term = [count *] (name | ( sum ))``.

    >>> expand_layers("2*(2*mamba+attention)")
    ('mamba', 'mamba', 'attention', 'mamba', 'mamba', 'attention')

    Raises:
        ConfigError: the text is no such sum; the message points at the place.
    """
    tokens: list[str] = []
    position = 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None:
            raise ConfigError(f"layers: unexpected {text[position:].strip()[0]!r} in {text!r}")
        tokens.append(match[1])
        position = match.end()
    tokens.append("")  # the end
    here = 0

    def take(expected: str | None = None) -> str:
        nonlocal here
        token = tokens[here]
        if expected is not None and token != expected:
            raise ConfigError(f"layers: expected {expected!r} but got {_named(token)} in {text!r}")
        here += 1
        return token

    def sum_() -> tuple[str, ...]:
        names = term()
        while tokens[here] == "+":
            take()
            names += term()
        return names

    def term() -> tuple[str, ...]:
        count = 1
        if tokens[here].isdigit():
            count = int(take())
            take("*")
        if tokens[here] == "(":
            take()
            names = sum_()
            take(")")
        elif tokens[here].isidentifier():
            names = (take(),)
        else:
            raise ConfigError(f"layers: expected a mixer's name but got {_named(tokens[here])} in {text!r}")
        return count * names

    names = sum_()
    if tokens[here]:
        raise ConfigError(f"layers: expected '+' or the end but got {tokens[here]!r} in {text!r}")
    if not names:
        raise ConfigError(f"layers: expected at least one layer, got none in {text!r}")
    return names


def _named(token: str) -> str:
    return repr(token) if token else "the end"
