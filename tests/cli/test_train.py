"""`lavagna train` as people use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lavagna.cli.app import main
from lavagna.cli.common import choose_device, duration
from lavagna.cli.progress import TrainingProgress, progress
from lavagna.data import BPETokenizer, load_tokenizer
from lavagna.errors import InputError
from lavagna.models import LanguageModel
from lavagna.training import TrainingConfig, read_metrics, read_tables
from tests.cli.conftest import Command, train_arguments
from tests.conftest import ROOT
from tests.training.support import untimed


def test_a_run_says_what_it_did_and_what_comes_next(lavagna: Command, texts: Path, tmp_path: Path) -> None:
    run = tmp_path / "a run"
    printed = lavagna(*train_arguments(texts, run), "--steps", 6)
    assert printed.status == 0
    lines = printed.out.splitlines()
    bits = read_metrics(run)[-1]["validation_bits_per_byte"]
    assert lines[0] == f"{bits:.4f} bits per byte on held-out data after 6 steps"
    assert lines[1] == f"model:  {run / 'model'}"
    assert lines[2:] == [f"next:   lavagna generate '{run}' 'a prompt'", f"        lavagna evaluate '{run}'"]
    assert "parameters" in printed.err
    assert "held out" in printed.err
    assert re.search(r"step 6/6  loss \d\.\d+  [\d,]+ tokens/s  0 s left", printed.err)
    assert (
        f"step 3: {read_metrics(run)[3]['validation_bits_per_byte']:.4f} bits per byte on held-out data" in printed.err
    )
    contents = ["checkpoints", "data", "metrics.jsonl", "model", "run.json", "tensorboard"]
    assert sorted(path.name for path in run.iterdir()) == contents
    config = LanguageModel.load(run / "model").config
    assert (config.width, config.vocab_size, config.layers) == (16, 257, ("gated_deltanet", "attention"))


def test_settings_from_a_file_are_overridden_from_the_command_line(
    lavagna: Command, texts: Path, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(
        '[model]\nwidth = 16\nlayers = "mamba"\n[model.mixers.mamba]\nstate_size = 2\n'
        '[training]\nsteps = 9\ncontext = 8\nbatch_size = 1\nseed = 3\nschedule = "wsd"\n'
        f'[data]\nsource = ["{texts}"]\npattern = "*[0-5].txt"\ntokenizer = "bpe:270"\n'
    )
    out = tmp_path / "run"
    command = ["train", "--config", tmp_path / "tiny.toml", "--out", out, "--steps", 2, "--seed", 4, "--no-tensorboard"]
    assert lavagna(*command, "--set", "training.betas=[0.8, 0.9]", "--set", "model.mixers.mamba.expand=3").status == 0
    tables = read_tables(out / "run.json")
    assert tables["training"] | {"steps": 2, "seed": 4, "schedule": "wsd", "betas": [0.8, 0.9]} == tables["training"]
    assert tables["data"]["pattern"] == "*[0-5].txt"
    model = LanguageModel.load(out / "model")
    assert model.config.mixers == {"mamba": {"state_size": 2, "expand": 3}}
    assert isinstance(load_tokenizer(out / "model"), BPETokenizer)
    assert not (out / "tensorboard").exists()
    # Everything that was asked for is in run.json: it is a configuration too.
    assert lavagna("train", "--config", out / "run.json", "--out", tmp_path / "again").status == 0
    assert untimed(tmp_path / "again") == untimed(out)


def test_a_saved_model_is_gone_on_from(lavagna: Command, trained: Path, tmp_path: Path) -> None:
    text = tmp_path / "other.txt"
    text.write_text("read and write, read and write, " * 9)
    keys = ["--steps", 2, "--context", 16, "--batch-size", 1, "--no-tensorboard"]
    printed = lavagna("train", text, "--init", trained, "--out", tmp_path / "run", *keys)
    assert printed.status == 0
    first, before = read_metrics(tmp_path / "run")[0]["loss"], read_metrics(trained)[0]["loss"]
    assert first < before - 1
    assert LanguageModel.load(tmp_path / "run" / "model").config == LanguageModel.load(trained / "model").config


def test_the_default_place_is_named_after_the_model(
    lavagna: Command, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = train_arguments(texts, tmp_path)[:-2]
    assert lavagna(*arguments, "--steps", 1).status == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["gated_deltanet_attention-nano"]


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lavagna.cli.app", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


LONG = ["--steps", "120", "--set", "training.evaluate_every=50", "--set", "training.save_every=40", "--no-tensorboard"]


@pytest.fixture(scope="session")
def whole(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    run = tmp_path_factory.mktemp("cli") / "whole"
    with pytest.raises(SystemExit) as left:
        main([*train_arguments(texts, run), *LONG])
    assert not left.value.code
    return run


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_a_process_that_is_interrupted_saves_and_goes_on_exactly(
    lavagna: Command, texts: Path, tmp_path: Path, whole: Path, number: signal.Signals, name: str
) -> None:
    """A real signal to a real process, at whatever step it happens to be; then to the end: bit for bit the same."""
    run = tmp_path / "cut"
    process = start(*train_arguments(texts, run), *LONG)
    deadline = time.monotonic() + 60
    while len(read_metrics(run)) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert "Traceback" not in err
    said = re.fullmatch(
        rf"stopped by {name} after step (\d+) of 120; saved in (.*)\ngo on:  (lavagna train --resume --out .*)\n", out
    )
    assert said, out
    assert Path(said[2]).name == f"step-{int(said[1]):08d}"
    printed = lavagna(*said[3].split()[1:], "--no-tensorboard")
    assert printed.status == 0
    assert "after 120 steps" in printed.out
    assert untimed(run) == untimed(whole)
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (run, whole)]
    assert weights[0] == weights[1]


def test_resuming_needs_no_data_and_refuses_other_settings(lavagna: Command, texts: Path, tmp_path: Path) -> None:
    """The run has its tokens: the files may be gone; what was asked for is known, and anything else is refused."""
    run, moved = tmp_path / "run", texts.with_name("moved")
    assert lavagna(*train_arguments(texts, run), "--steps", 4).status == 0
    texts.rename(moved)
    try:
        again = lavagna("train", "--resume", "--out", run)
        assert again.status == 0
        assert "after 4 steps" in again.out
    finally:
        moved.rename(texts)
    same = lavagna(*train_arguments(texts, run), "--steps", 4, "--resume")
    assert same.status == 0
    for change, message in (
        (["--steps", 5], "training.steps was 4 and is 5"),
        (["--set", "training.clip=2.0"], "training.clip was 1.0 and is 2.0"),
        ([run], f"with other data: data.source was ('{texts}',) and is ('{run}',)"),
    ):
        printed = lavagna("train", "--resume", "--out", run, *change)
        assert printed.status == 2
        assert message in printed.err.splitlines()[-1]
        assert printed.err.splitlines()[-1].startswith("lavagna: ")


def test_a_run_that_never_began_keeps_nothing_of_what_it_was_asked(
    lavagna: Command, texts: Path, tmp_path: Path
) -> None:
    """Its settings and data are there, but no step: the folder is free, and the new settings count."""
    run = tmp_path / "run"
    assert lavagna(*train_arguments(texts, run), "--steps", 1, "--seed", 1).status == 0
    for left in ("checkpoints", "model", "tensorboard"):
        shutil.rmtree(run / left)
    (run / "metrics.jsonl").unlink()
    assert (
        lavagna(*train_arguments(texts, run), "--steps", 2, "--seed", 2, "--set", "data.pattern=*[0-5].txt").status == 0
    )
    tables = read_tables(run / "run.json")
    assert (tables["training"]["seed"], tables["data"]["pattern"]) == (2, "*[0-5].txt")


def test_damaged_settings_of_a_run_are_one_sentence(lavagna: Command, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    printed = lavagna("train", "--resume", "--out", tmp_path)
    assert (printed.status, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert "run.json' is malformed" in printed.err


def test_no_run_to_go_on_with(lavagna: Command, tmp_path: Path) -> None:
    printed = lavagna("train", "--resume", "--out", tmp_path / "nowhere")
    assert (printed.status, printed.out) == (2, "")
    assert "expected a run to go on with in" in printed.err
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a model: --preset NAME, --init MODEL, or a [model] table with its layers"),
        (["--preset", "gated_deltanet-tinny"], "unknown size of a preset 'tinny'; did you mean 'tiny'?"),
        (["--preset", "mamba-nano", "--init", "x"], "[model]: expected preset or init, got both"),
        (["--config", "nothing.toml"], "cannot read 'nothing.toml': No such file or directory"),
        (["--config", "tiny.toml", "--preset", "mamba-nano"], "expected one model, got --preset and [model] in"),
        (["--config", "typo.toml"], "unknown key of [training] 'stepps'; did you mean 'steps'?"),
        (["--preset", "mamba-nano", "--resume"], "--resume needs --out"),
        (["--resume"], "--resume needs --out"),
        (["--preset", "mamba-nano", "--set", "steps=3"], "expected table.key=value"),
        (["--preset", "mamba-nano", "--set", "training.step=3"], "unknown key of [training] 'step'"),
        (["--preset", "mamba-nano", "--set", "model.mixers.mamba.heads=3"], "unknown option of mamba 'heads'"),
        (["--preset", "mamba-nano", "--steps", "0"], "[training]: steps: Input should be greater than or equal to 1"),
        (["--preset", "mamba-nano", "--device", "gpu"], "unknown device 'gpu'; did you mean 'cpu'?"),
        (["--preset", "mamba-nano", "--device", "mps"], "expected a device that torch can use here, got 'mps'"),
        (["--preset", "mamba-nano", "--threads", "0"], "--threads must be at least 1, got 0"),
        (["--preset", "mamba-nano", "--tokenizer", "bpe:x"], "expected bpe:SIZE with a number of tokens"),
        (["nothing-there", "--preset", "mamba-nano"], "expected a file, a folder or a glob pattern"),
        (["*.nothing", "--preset", "mamba-nano"], "'*.nothing' has or matches none"),
        (["empty.txt", "--preset", "mamba-nano"], "expected text, but there is none in empty.txt"),
        (["short.txt", "--preset", "mamba-nano"], "expected data of at least one context of 512 tokens"),
        (["data.jsonl", "--preset", "mamba-nano"], "expected a column 'text', but there are only: body"),
        (["--init", "nothing"], "expected a model or a run, but 'nothing' does not exist"),
        (["--init", "nothing", "--tokenizer", "bytes"], "expected none beside init"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(
    lavagna: Command, arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text('[model]\nwidth = 16\nlayers = "mamba"\n')
    (tmp_path / "typo.toml").write_text('[model]\nwidth = 16\nlayers = "mamba"\n[training]\nstepps = 3\n')
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "data.jsonl").write_text('{"body": "x"}\n')
    printed = lavagna("train", *arguments)
    assert printed.status == 2
    assert printed.out == ""
    assert printed.err.startswith("lavagna: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not list(tmp_path.glob("runs/*/metrics.jsonl"))
    assert not list(tmp_path.glob("runs/*/model"))


def test_a_folder_that_holds_a_run_is_not_touched(lavagna: Command, trained: Path, texts: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}
    printed = lavagna(*train_arguments(texts, trained), "--steps", 30)
    assert printed.status == 2
    assert "already holds a run: resume it (--resume), or choose another folder" in printed.err
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


def test_defaults_in_the_help_are_those_of_the_configuration(lavagna: Command) -> None:
    help_text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", lavagna("train", "--help").out).split())
    defaults = TrainingConfig()
    for option in ("steps", "context", "batch_size", "learning_rate", "seed"):
        flag = f"--{option.replace('_', '-')} "
        described = help_text[help_text.index(flag) :]
        found = re.search(r"\(default: ([\d.]+)\)", described)
        assert found, option
        assert float(found[1]) == getattr(defaults, option)


def test_durations_are_read_easily() -> None:
    assert [duration(s) for s in (0.4, 59.4, 60, 200, 7500)] == [
        "0 s",
        "59 s",
        "1 min 00 s",
        "3 min 20 s",
        "2 h 05 min",
    ]


def test_devices() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(InputError):
        choose_device("tpu")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let rich believe that it writes to a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "150")


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(10) as shown:
        for step in (3, 4):
            shown.observe({"step": step, "loss": 2.5, "tokens": 100, "seconds": 0.5})
        shown.evaluating(50, 200)
        shown.observe({"step": 4, "validation_bits_per_byte": 3.25, "seconds": 1.0})
    printed = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", capsys.readouterr().err)
    assert "step 4: 3.2500 bits per byte on held-out data" in printed
    assert re.search(r"training .* 4/10 loss 2\.5000  200 tokens/s  3 s left", printed)


@pytest.mark.usefixtures("terminal")
def test_a_terminal_shows_other_work_that_takes_its_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress("reading data") as show:
        show(10, 40)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("lavagna.cli.progress.GRACE", -1.0)
    with progress("reading data") as show:
        show(10, 40)
    assert "reading data" in capsys.readouterr().err


def test_elsewhere_a_line_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with TrainingProgress(100) as shown:
        for step in range(1, 101):
            shown.observe({"step": step, "loss": 2.5, "tokens": 100, "seconds": 0.5})
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 21
    assert lines[0] == "step 1/100  loss 2.5000  200 tokens/s  50 s left"
    with TrainingProgress(10000) as shown:
        for step in range(1, 301):
            shown.observe({"step": step, "loss": 2.5, "tokens": 100, "seconds": 0.5})
    assert len(capsys.readouterr().err.splitlines()) == 3  # at once, and one a minute
    moments = iter([0.0, 1.0, 16.0, 16.0, 17.0])
    monkeypatch.setattr("lavagna.cli.progress.time.monotonic", lambda: next(moments))
    with progress("reading data") as show:
        for done in (10, 20, 30):
            show(done, 40)
    assert capsys.readouterr().err == "reading data: 50 %\n"


def test_run_json_is_json(trained: Path) -> None:
    tables = json.loads((trained / "run.json").read_text())
    assert list(tables) == ["model", "training", "data"]
