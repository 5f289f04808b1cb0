"""``lavagna compare`` at the command line: options, files, what it prints, how it ends."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lavagna.cli import app
from lavagna.errors import ConfigError
from lavagna.studies import compare as module
from lavagna.studies.compare import Interrupted
from lavagna.studies.config import DEMO, CompareConfig
from lavagna.studies.verdict import verdict
from tests.studies.results import candidate, results

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process: exit status, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            app.main(["compare", *arguments])
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompareConfig]:
    """Put made-up results in the place of a comparison; the settings that came are kept."""
    seen: list[CompareConfig] = []
    found = results(
        candidate("mamba", 2.4, native=6.5), candidate("attention", 3.6, state=(100_000, 1_600_000), native=1.0)
    )
    found["verdict"] = verdict(found)

    def compare(config: CompareConfig, out: Path, **options: Any) -> dict[str, Any]:
        seen.append(config)
        options["watcher"].begin(10.0)
        options["watcher"].stage("mamba, training", 5.0, known=False)
        options["watcher"].progress(0.5, "loss 2.5")
        options["watcher"].done("mamba, training", "2.4 bits per token")
        return found

    monkeypatch.setattr(module, "compare", compare)
    return seen


def test_options_reach_the_settings(run: Run, asked: list[CompareConfig]) -> None:
    status, _, _ = run(
        *("a.txt", "b", "--candidates", "attention,2*mamba", "--tokens", "5000", "--parameters", "20000"),
        *("--depth", "2", "--context", "64", "--batch-size", "4", "--learning-rates", "1e-3, 2e-3", "--seeds", "3"),
        *("--tokenizer", "bpe:300", "--column", "body", "--pattern", "*.md"),
    )
    assert status == 0
    (config,) = asked
    assert config == CompareConfig.parse(
        {
            "candidates": "attention,2*mamba",
            "tokens": 5000,
            "parameters": 20000,
            "depth": 2,
            "context": 64,
            "batch_size": 4,
            "learning_rates": [0.001, 0.002],
            "seeds": 3,
            "data": {"source": ["a.txt", "b"], "tokenizer": "bpe:300", "column": "body", "pattern": "*.md"},
        }
    )


def test_the_demo_is_a_table_that_options_change(run: Run, asked: list[CompareConfig]) -> None:
    run("--demo")
    run("--demo", "--tokens", "1000")
    run()
    assert asked == [CompareConfig.parse(DEMO), CompareConfig.parse({**DEMO, "tokens": 1000}), CompareConfig()]


def test_a_file_of_settings(run: Run, asked: list[CompareConfig], tmp_path: Path) -> None:
    file = tmp_path / "compare.toml"
    file.write_text(
        "[compare]\nparameters = 20000\nrounds = 2\n[model]\nnorm = 'layernorm'\nmixers.attention.heads = 2\n"
        "[training]\nweight_decay = 0.0\n[data]\nsource = ['a.txt']\n"
    )
    assert run("--config", str(file), "--parameters", "30000", "b.txt")[0] == 0
    (config,) = asked
    assert (config.parameters, config.rounds, config.data.source) == (30000, 2, ("b.txt",))
    assert config.model == {"norm": "layernorm", "mixers": {"attention": {"heads": 2}}}
    assert config.training == {"weight_decay": 0.0}


def test_it_ends_with_a_table_samples_the_verdict_and_the_report(
    run: Run, asked: list[CompareConfig], tmp_path: Path
) -> None:
    folder = tmp_path / ("a-long-name" * 12)
    status, out, err = run("--out", str(folder))
    assert status == 0
    lines = out.splitlines()
    (row,) = (line for line in lines if line.startswith("mamba  "))
    assert row.split() == ["mamba", "150,000", "2.400", "±0.010", "10,000", "6.5", "500", "1", "kB"]
    assert any(line.startswith("gzip -9") and line.rstrip().endswith("1.900") for line in lines)
    assert any(line.startswith("table of token pairs") and line.rstrip().endswith("3.500") for line in lines)
    assert "--- mamba goes on from 'import <b>':\nos & sys" in out
    assert out.index("WARNING: attention does not even beat") < out.index("mamba predicts held-out text best")
    assert f"report: {folder / 'report.html'}" in out
    assert f"next:   lavagna generate {folder / 'models/mamba'} 'a prompt'" in out
    assert "mamba, training: 2.4 bits per token (0 s)" in err


def test_control_characters_of_a_sample_do_not_reach_the_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = results(candidate("mamba", 2.4))
    found["candidates"][0]["sample"]["text"] = "a\x1b[2Jb[red]c"
    found["verdict"] = verdict(found)
    monkeypatch.setattr(module, "compare", lambda config, out, **options: found)
    out = run("--out", str(tmp_path))[1]
    assert "a\N{REPLACEMENT CHARACTER}[2Jb[red]c" in out


@pytest.mark.parametrize(
    ("stopped", "status"),
    [(Interrupted(signal.SIGINT), 130), (Interrupted(signal.SIGTERM), 143), (KeyboardInterrupt(), 130)],
)
def test_interrupted_it_says_how_to_go_on(
    stopped: BaseException, status: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*arguments: Any, **options: Any) -> None:
        raise stopped

    monkeypatch.setattr(module, "compare", compare)
    left, out, err = run()
    assert left == status
    assert out == ""
    assert "the same command goes on from here" in err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (("--learning-rates", "fast"), "expected numbers between commas"),
        (("--candidates", "attention,"), "patterns of layers between commas"),
        (("--tokens", "0"), "tokens: Input should be greater than or equal to 1"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--config", "nowhere.toml"), "cannot read 'nowhere.toml'"),
        (("nowhere.txt",), "nowhere.txt"),
        (("--candidates", "atention"), "did you mean 'attention'"),
    ],
)
def test_errors_are_one_sentence(
    arguments: tuple[str, ...], what: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "some.txt").write_text("some text, again and again " * 100)
    data = () if "nowhere.txt" in arguments else ("some.txt",)
    status, out, err = run(*data, *arguments)
    last = err.strip().splitlines()[-1]
    assert status == 2
    assert out == ""
    assert last.startswith("lavagna: ")
    assert what in last


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[comapre]\n", "did you mean 'compare'"),
        ("compare = 3\n", r"expected a table \[compare\]"),
        ("[compare.model]\nnorm = 'layernorm'\n", r"expected \[model\] beside \[compare\]"),
        ("[compare]\ntoken = 3\n", "did you mean 'tokens'"),
        ("[data]\nsuorce = []\n", "did you mean 'source'"),
    ],
)
def test_a_file_with_mistakes_is_refused(text: str, what: str, tmp_path: Path) -> None:
    from lavagna.cli.compare import compare

    file = tmp_path / "compare.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=what):
        compare(config=file)


def test_a_real_one_from_end_to_end_twice_and_overwritten(run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over a lazy dog\n" * 100)
    (tmp_path / "small.toml").write_text(
        "[compare]\nparameters = 16000\ndepth = 1\ntokens = 500\ncontext = 32\nbatch_size = 2\n"
        "learning_rates = [0.02]\nread_lengths = [16]\nrounds = 1\n"
    )
    out = tmp_path / "out"
    arguments = (str(tmp_path / "text.txt"), "--config", str(tmp_path / "small.toml"), "--out", str(out))
    status, printed, _ = run(*arguments, "--candidates", "attention")
    assert status == 0
    before = json.loads((out / "results.json").read_text())
    status, again, err = run(*arguments, "--candidates", "attention")
    assert (status, again, err) == (0, printed, "")
    status, _, err = run(*arguments, "--candidates", "gla")
    assert status == 2
    assert "candidates was 'attention' and is 'gla'" in err
    assert json.loads((out / "results.json").read_text()) == before
    assert run(str(tmp_path / "nowhere.txt"), *arguments[1:], "--overwrite")[0] == 2
    assert (out / "results.json").is_file()
    assert run(*arguments, "--candidates", "gla", "--overwrite")[0] == 0
    assert [c["name"] for c in json.loads((out / "results.json").read_text())["candidates"]] == ["gla"]
    assert [folder.name for folder in (out / "models").iterdir()] == ["gla"]
