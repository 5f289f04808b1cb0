"""The command line as a function, and one small run that several commands use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lavagna.cli.app import main
from tests.training.support import write_texts


class Printed(NamedTuple):
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str


Command = Callable[..., Printed]


@pytest.fixture
def lavagna(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command in this process."""

    def run(*arguments: object) -> Printed:
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        status = left.value.code
        return Printed(status if isinstance(status, int) else int(status is not None), printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of short documents."""
    return write_texts(tmp_path_factory.mktemp("cli") / "texts")


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Path:
    """The folder of a small finished run on them."""
    run = tmp_path_factory.mktemp("cli") / "run"
    with pytest.raises(SystemExit) as left:
        main([*train_arguments(texts, run), "--steps", "30"])
    assert not left.value.code
    return run


def train_arguments(texts: Path, out: Path) -> list[str]:
    """A training command that takes a second."""
    keys = {"evaluate_every": 3, "evaluate_tokens": 100, "save_every": 2, "validation_fraction": 0.2}
    sets = [part for key, value in keys.items() for part in ("--set", f"training.{key}={value}")]
    model = ["--preset", "gated_deltanet+attention-nano", "--set", "model.width=16"]
    sizes = ["--context", "24", "--batch-size", "2", "--learning-rate", "0.01"]
    return ["train", str(texts), *model, *sizes, *sets, "--out", str(out)]
