"""Small runs for the tests of training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lavagna.data import ByteTokenizer, Corpus, prepare
from lavagna.training import Finished, TrainingConfig, read_metrics, train
from lavagna.training.metrics import TIMES
from tests.support.models import LAYERS, make_model

__all__ = ["TINY", "make_corpus", "run", "untimed", "write_texts"]

TINY: dict[str, Any] = {
    "steps": 6,
    "context": 24,
    "batch_size": 2,
    "learning_rate": 1e-2,
    "evaluate_every": 3,
    "evaluate_tokens": 100,
    "save_every": 2,
    "validation_fraction": 0.2,
}


def write_texts(folder: Path, documents: int = 12, longest: int = 90) -> Path:
    """Files of words, of lengths from 1 to `longest` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    words = np.array(["memory", "fades", "a page", "erase", "write", "read"])
    generator = np.random.default_rng(0)
    for number in range(documents):
        text = " ".join(generator.choice(words, 20))
        (folder / f"{number:03}.txt").write_text(text[: int(generator.integers(1, longest))])
    return folder


def make_corpus(folder: Path, **sizes: int) -> Corpus:
    """The bytes of such files."""
    return prepare(write_texts(folder / "texts", **sizes), ByteTokenizer(), folder / "corpus")


def run(
    corpus: Corpus,
    folder: Path,
    *,
    layers: str = LAYERS[-1],
    resume: bool = False,
    observe: Callable[[Mapping[str, Any]], None] = lambda line: None,
    evaluating: Callable[[int, int], None] = lambda done, total: None,
    **changes: Any,
) -> Finished:
    """Train a small model on a corpus; `changes` are keys of [training]."""
    config = TrainingConfig.parse({**TINY, **changes})
    training, validation = corpus.split(config.validation_fraction)
    return train(
        make_model(layers), training, validation, config, folder, resume=resume, observe=observe, evaluating=evaluating
    )


def untimed(run: Path) -> list[dict[str, Any]]:
    """A run's metrics without what depends on the moment."""
    return [{key: value for key, value in line.items() if key not in TIMES} for line in read_metrics(run)]
