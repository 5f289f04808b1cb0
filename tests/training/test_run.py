"""What the folder of a run holds, and its curves."""

from __future__ import annotations

from pathlib import Path

import pytest

from lavagna.errors import ConfigError
from lavagna.training import DATA, MODEL, SETTINGS, find_model, find_run, tensorboard
from lavagna.training.checkpoint import checkpoint_folder
from tests.support.models import make_model


def make_run(folder: Path) -> Path:
    (folder / DATA).mkdir(parents=True)
    (folder / SETTINGS).write_text("{}")
    return folder


def test_a_model_is_found_by_itself_by_its_run_and_by_a_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"holds neither model.safetensors, model/ nor a checkpoint"):
        find_model(run)
    for step in (2, 10):
        folder = checkpoint_folder(run, step)
        make_model().save(folder)
        (folder / "training.json").write_text("{}")
    assert find_model(run) == checkpoint_folder(run, 10)
    make_model().save(run / MODEL)
    assert find_model(run) == find_model(str(run / MODEL)) == run / MODEL
    with pytest.raises(ConfigError, match=r"expected a model or a run, but .*nothing' does not exist"):
        find_model(tmp_path / "nothing")


def test_the_run_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run")
    for path in (run, run / MODEL, checkpoint_folder(run, 3)):
        assert find_run(path) == run
    assert find_run(tmp_path) is None
    monkeypatch.chdir(run)
    assert find_run("model") == run


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_curves_are_written_where_tensorboard_is_installed(tmp_path: Path) -> None:
    with tensorboard(tmp_path) as write:
        write({"step": 1, "loss": 2.0})
        write({"step": 2, "loss": 1.5})
        write({"step": 2, "validation_bits_per_byte": 1.25})
    assert scalars(tmp_path) == {"loss": [(1, 2.0), (2, 1.5)], "validation_bits_per_byte": [(2, 1.25)]}


def test_curves_of_a_resumed_run_have_no_step_twice(tmp_path: Path) -> None:
    with tensorboard(tmp_path) as write:
        for step in (1, 2, 3):
            write({"step": step, "loss": float(step)})
    folder = checkpoint_folder(tmp_path, 2)
    folder.mkdir(parents=True)
    (folder / "training.json").write_text("{}")
    with tensorboard(tmp_path) as write:
        write({"step": 3, "loss": 30.0})
    assert scalars(tmp_path) == {"loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_no_curves_where_none_are_wanted_or_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tensorboard(tmp_path, wanted=False) as write:
        write({"step": 1, "loss": 2.0})
    monkeypatch.setattr("lavagna.training.curves.find_spec", lambda name: None)
    with tensorboard(tmp_path) as write:
        write({"step": 1, "loss": 2.0})
    assert list(tmp_path.iterdir()) == []
    with (
        pytest.raises(ConfigError, match=r"needs the package tensorboard: pip install 'lavagna\[tensorboard\]'"),
        tensorboard(tmp_path, wanted=True),
    ):
        pass
