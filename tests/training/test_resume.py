"""A run that was stopped goes on as if it had not been."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lavagna.data import Corpus
from lavagna.errors import ConfigError
from lavagna.models import LanguageModel
from lavagna.training.checkpoint import latest_checkpoint
from lavagna.training.interruption import interruptible
from tests.support.models import LAYERS
from tests.training.support import run, untimed


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return LanguageModel.load(folder / "model").state_dict()


def same_run(a: Path, b: Path) -> None:
    """Bit for bit: every line of metrics, times apart, and every weight."""
    assert untimed(a) == untimed(b)
    mine, theirs = weights(a), weights(b)
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)


class Crash(Exception):
    """The process ended without a warning."""


def crash_at(step: int) -> Any:
    def observe(line: Mapping[str, Any]) -> None:
        if line["step"] == step and "loss" in line:
            raise Crash

    return observe


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("carry_state", [False, True])
def test_after_a_crash(corpus: Corpus, tmp_path: Path, layers: str, carry_state: bool) -> None:
    """At step 5, with a checkpoint after 4: step 5 is done again and its first line is gone."""
    keys: dict[str, Any] = {"layers": layers, "carry_state": carry_state}
    run(corpus, tmp_path / "whole", **keys)
    with pytest.raises(Crash):
        run(corpus, tmp_path / "cut", observe=crash_at(5), **keys)
    assert [line["step"] for line in untimed(tmp_path / "cut")] == [1, 2, 3, 3, 4, 5]
    finished = run(corpus, tmp_path / "cut", resume=True, **keys)
    assert finished.step == 6
    same_run(tmp_path / "cut", tmp_path / "whole")


def test_after_a_crash_before_the_first_checkpoint(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "whole")
    with pytest.raises(Crash):
        run(corpus, tmp_path / "cut", observe=crash_at(1))
    run(corpus, tmp_path / "cut", resume=True)
    same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize("step", [1, 3, 6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_after_a_signal(corpus: Corpus, tmp_path: Path, step: int, number: signal.Signals) -> None:
    """In the middle, where an evaluation is due (3) and at the very end (6): it saves, says so, and goes on."""
    run(corpus, tmp_path / "whole", accumulate=2)

    def observe(line: Mapping[str, Any]) -> None:
        if line["step"] == step and "loss" in line:
            os.kill(os.getpid(), number)

    stopped = run(corpus, tmp_path / "cut", observe=observe, accumulate=2)
    assert (stopped.step, stopped.interrupted) == (step, number)
    assert stopped.model == tmp_path / "cut" / "checkpoints" / f"step-{step:08d}" == latest_checkpoint(tmp_path / "cut")
    assert not (tmp_path / "cut" / "model").exists()
    finished = run(corpus, tmp_path / "cut", resume=True, accumulate=2)
    assert (finished.step, finished.interrupted) == (6, None)
    same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_signal_during_an_evaluation_does_not_wait_for_its_end(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "whole")
    calls = []

    def evaluating(done: int, total: int) -> None:
        calls.append((done, total))
        os.kill(os.getpid(), signal.SIGTERM)

    stopped = run(corpus, tmp_path / "cut", evaluating=evaluating)
    assert len(calls) == 1
    assert calls[0][0] < calls[0][1]
    assert (stopped.step, stopped.interrupted) == (3, signal.SIGTERM)
    run(corpus, tmp_path / "cut", resume=True)
    same_run(tmp_path / "cut", tmp_path / "whole")


def test_again_and_again(corpus: Corpus, tmp_path: Path) -> None:
    """A step a process."""
    run(corpus, tmp_path / "whole", carry_state=True)
    steps = 0
    while steps < 6:

        def observe(line: Mapping[str, Any]) -> None:
            if "loss" in line:
                os.kill(os.getpid(), signal.SIGTERM)

        steps = run(corpus, tmp_path / "cut", resume=steps > 0, observe=observe, carry_state=True).step
    finished = run(corpus, tmp_path / "cut", resume=True, carry_state=True)
    assert finished.interrupted is None
    same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_finished_run_resumed_is_finished(corpus: Corpus, tmp_path: Path) -> None:
    first = run(corpus, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    again = run(corpus, tmp_path / "run", resume=True)
    assert again == first
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_run_that_never_began_is_begun(corpus: Corpus, tmp_path: Path) -> None:
    assert run(corpus, tmp_path / "run", resume=True).step == 6


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_rate": 1e-3}, "training.learning_rate was 0.01 and is 0.001"),
        ({"steps": 8, "seed": 1}, "training.seed was 0 and is 1; training.steps was 6 and is 8"),
        ({"layers": LAYERS[0]}, "model.layers was"),
    ],
)
def test_other_settings_are_refused(corpus: Corpus, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run(corpus, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=message):
        run(corpus, tmp_path / "run", resume=True, **changes)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_how_often_it_saves_may_change(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        run(corpus, tmp_path / "run", observe=crash_at(5))
    assert run(corpus, tmp_path / "run", resume=True, save_every=0).step == 6


def test_a_checkpoint_that_fails_leaves_the_one_before(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the second checkpoint: the first one is whole, and resumed from."""
    run(corpus, tmp_path / "whole")
    save = torch.save

    def full(value: Any, path: Path) -> None:
        save(value, path)
        if "step-00000004" in str(path):
            raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(OSError, match="no space"):
            run(corpus, tmp_path / "cut")
    assert [p.name for p in (tmp_path / "cut" / "checkpoints").iterdir()] == ["step-00000002"]
    run(corpus, tmp_path / "cut", resume=True)
    same_run(tmp_path / "cut", tmp_path / "whole")


def test_handlers_are_put_back_and_a_second_signal_ends_at_once() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def impatient() -> None:
        with interruptible() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked.signal == signal.SIGINT
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_outside_of_the_main_thread_works_without_signals(corpus: Corpus, tmp_path: Path) -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(run(corpus, tmp_path / "run")))
    thread.start()
    thread.join()
    assert found[0].step == 6
