"""The contracts, for every mixer and MLP of the registry with every set of its options."""

from __future__ import annotations

import pytest

from ..support.conformance import *  # noqa: F403
from ..support.conformance import parametrize
from ..support.contracts import Subject
from ..support.subjects import MIXER_SUBJECTS


def first_variant(subject: Subject) -> bool:
    return subject.name.endswith("-default") or subject.name.startswith("mamba2-state_size=8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc, MIXER_SUBJECTS, first_variant)
