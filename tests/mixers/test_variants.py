"""The table of variants leaves out no mixer, no option and no value."""

from __future__ import annotations

import types
from typing import Any, Literal, get_args, get_origin

import pytest

from lavagna.mixers.registry import MIXERS, MLPS, mixer_class, option_types

from ..support.variants import VARIANTS, WIDTH

ALL = {**MIXERS, **MLPS}


def test_every_mixer_and_mlp_has_variants() -> None:
    assert set(VARIANTS) == set(ALL)


def values_to_cover(annotation: Any) -> list[Any]:
    """What must occur: each value of a Literal or a bool; None and something else of `X | None`."""
    if annotation is bool:
        return [True, False]
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    if isinstance(annotation, types.UnionType):
        return [None, ...]
    return [...]


@pytest.mark.parametrize("name", ALL)
def test_every_value_of_every_option_occurs(name: str) -> None:
    cls = mixer_class(name, ALL)
    for option, field in option_types(cls).model_fields.items():
        given = [variant.get(option, field.default) for variant in VARIANTS[name]]
        for value in values_to_cover(field.annotation):
            if value is ...:
                assert any(v not in (None, field.default) for v in given), f"{name}: {option} never changes"
            else:
                assert value in given, f"{name}: {option}={value!r} does not occur"


@pytest.mark.parametrize("name", ALL)
def test_variants_can_be_built(name: str) -> None:
    for variant in VARIANTS[name]:
        assert mixer_class(name, ALL)(WIDTH, **variant).width == WIDTH
