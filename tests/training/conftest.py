"""One small corpus for all tests of training."""

from __future__ import annotations

import pytest

from lavagna.data import Corpus
from tests.training.support import make_corpus


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Twelve short documents."""
    return make_corpus(tmp_path_factory.mktemp("corpus"))
