"""A whole comparison on a small text: what it writes, that it goes on where it stopped, what it refuses."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lavagna import native
from lavagna.cli.evaluate import evaluate
from lavagna.data import load_tokenizer, prepare
from lavagna.errors import ConfigError, DataError, NonFiniteError
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.studies import compare as module
from lavagna.studies.compare import Interrupted, compare, compared_data, forget
from lavagna.studies.config import DEMO, CompareConfig
from lavagna.studies.runs import choose_rate, train_run
from lavagna.studies.stages import Watcher
from lavagna.studies.study import Study
from lavagna.training import trained_on, trained_with

CANDIDATES = "attention,gated_deltanet,attention"


def write_text(folder: Path) -> Path:
    """Thirty small documents of words that a model can learn."""
    generator = random.Random(0)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "runs", "away"]
    folder.mkdir()
    for i in range(30):
        lines = (" ".join(generator.choices(words, k=8)) for _ in range(generator.randint(4, 12)))
        (folder / f"{i:02}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text(tmp_path_factory.mktemp("data") / "text")


def config(text: Path, **changes: Any) -> CompareConfig:
    return CompareConfig.parse(
        {
            "candidates": CANDIDATES,
            "parameters": 16_000,
            "depth": 1,
            "tokens": 1200,
            "context": 32,
            "batch_size": 2,
            "learning_rates": [0.003, 0.02],
            "search": 0.25,
            "held_out": 0.2,
            "tune": 0.1,
            "evaluate_tokens": 1500,
            "read_lengths": [16, 48],
            "rounds": 2,
            "data": {"source": [str(text)]},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A comparison that ran through."""
    out = tmp_path_factory.mktemp("whole") / "out"
    return out, compare(config(text), out)


def apart_from_times(results: dict[str, Any]) -> dict[str, Any]:
    """Results without speeds and what is said of them."""
    candidates = [{key: value for key, value in c.items() if key != "speed"} for c in results["candidates"]]
    verdict = [statement for statement in results["verdict"] if statement["topic"] not in ("speed", "together")]
    return {**results, "candidates": candidates, "verdict": verdict}


def test_the_folder_holds_what_was_promised(whole: tuple[Path, dict[str, Any]]) -> None:
    out, results = whole
    assert sorted(entry.name for entry in out.iterdir()) == ["models", "report.html", "results.json", "settings.json"]
    assert json.loads((out / "results.json").read_text()) == results
    page = (out / "report.html").read_text()
    assert all(statement["text"].replace("'", "&#39;") in page for statement in results["verdict"])
    assert [c["name"] for c in results["candidates"]] == ["attention", "gated_deltanet", "attention (2)"]
    for candidate in results["candidates"]:
        model = LanguageModel.load(out / candidate["folder"])
        assert sum(p.numel() for p in model.parameters()) == candidate["parameters"]
        assert load_tokenizer(out / candidate["folder"]).vocab_size == model.config.vocab_size


def test_evaluate_finds_what_was_held_out(text: Path, whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """What is written beside a model divides the text as the comparison did, which may hold out less than asked."""
    out, results = whole
    folder = out / results["candidates"][0]["folder"]
    trained = trained_with(folder)
    assert trained is not None
    corpus = prepare([str(text)], load_tokenizer(folder), tmp_path / "data")
    assert corpus.fingerprint == trained_on(folder)
    assert corpus.split(trained.validation_fraction)[1].n_bytes == results["data"]["held_out"]["bytes"]


def test_sizes_agree_and_learning_rates_were_tried(whole: tuple[Path, dict[str, Any]]) -> None:
    _, results = whole
    sizes = [candidate["parameters"] for candidate in results["candidates"]]
    assert max(sizes) / min(sizes) <= 1.03
    for candidate in results["candidates"]:
        tried = candidate["learning_rate"]["tried"]
        assert [attempt["rate"] for attempt in tried] == [0.003, 0.02]
        best = min(tried, key=lambda attempt: attempt["bits_per_byte"])
        assert candidate["learning_rate"]["chosen"] == best["rate"]


def test_models_learnt_and_their_figures_hang_together(whole: tuple[Path, dict[str, Any]]) -> None:
    _, results = whole
    tokens = results["data"]["tokens_per_run"]
    assert tokens == 32 * 2 * round(1200 / 64)
    assert results["data"]["scored_documents"] == results["data"]["held_out"]["documents"]
    for candidate in results["candidates"]:
        quality = candidate["bits_per_byte"]
        assert quality["low"] < quality["value"] < quality["high"]
        assert quality["value"] < 7.5 < math.log2(257)
        assert candidate["runs"] == [quality["value"]]
        assert candidate["curve"]["tokens"][-1] == tokens
        assert candidate["curve"]["bits"][0] > candidate["curve"]["bits"][-1]
        positions = candidate["by_position"]
        assert positions[0]["from"] == 0
        assert positions[-1]["to"] == 4 * 32
        assert candidate["memory"][0]["context"] == 16
        # Forward and backward: about 6 for each parameter, embeddings being looked up.
        assert 2 < candidate["flops"]["training"] / candidate["parameters"] < 8
        assert candidate["flops"]["generation"] < candidate["flops"]["training"]
        # Beside native kernels the portable path is measured too, and nothing where it is all there is.
        assert (candidate["speed"]["native"] is not None) == native.available()
    attention, delta, _ = results["candidates"]
    assert attention["memory"][1]["bytes"] > attention["memory"][0]["bytes"]
    assert delta["memory"][1]["bytes"] == delta["memory"][0]["bytes"]
    model = LanguageModel(LanguageModelConfig.parse(delta["config"]))
    assert model.state_bytes(48) == delta["memory"][1]["bytes"]


def test_equal_candidates_cannot_be_told_apart(whole: tuple[Path, dict[str, Any]]) -> None:
    _, results = whole
    (pair,) = (d for d in results["differences"] if {d["a"], d["b"]} == {"attention", "attention (2)"})
    assert pair["value"] != 0  # they began from different seeds
    assert pair["sure"] is False
    assert results["seed_spread"]["repeats"] == 1


def test_only_equal_candidates(text: Path, tmp_path: Path) -> None:
    results = compare(
        config(text, candidates="attention,attention", learning_rates=[0.02], seeds=2, tokens=600), tmp_path / "out"
    )
    headline = next(statement for statement in results["verdict"] if statement["kind"] == "headline")
    assert headline["text"].startswith("Cannot tell which candidate predicts held-out text best")
    assert [len(candidate["runs"]) for candidate in results["candidates"]] == [2, 2]
    assert len({run for candidate in results["candidates"] for run in candidate["runs"]}) == 4
    assert results["seed_spread"]["repeats"] == 3


class Stopper(Watcher):
    """Does something at one moment of a study."""

    def __init__(self, stage: str, share: float, act: Callable[[], None]) -> None:
        self.wanted, self.share, self.act = stage, share, act
        self.now = ""
        self.known: list[str] = []

    def stage(self, title: str, work: float, *, known: bool) -> None:
        self.now = title
        if known:
            self.known.append(title)

    def progress(self, share: float, facts: str) -> None:
        if self.now == self.wanted and share >= self.share:
            self.wanted = ""
            self.act()


class Crash(Exception):
    """The process dies here."""


def crash() -> None:
    raise Crash


#: stage, share of it, what happens, what it looks like
STOPS: list[tuple[str, float, Callable[[], None], type[BaseException]]] = [
    ("reading data", 0.0, crash, Crash),
    ("gated_deltanet, trying learning rate 0.003", 0.5, lambda: os.kill(os.getpid(), signal.SIGINT), Interrupted),
    ("attention, training", 0.4, lambda: os.kill(os.getpid(), signal.SIGTERM), Interrupted),
    ("attention, scoring", 0.3, crash, Crash),
    ("gated_deltanet, training", 0.6, crash, Crash),
    ("measuring generation", 0.5, crash, Crash),
]


def test_it_goes_on_where_it_stopped(text: Path, tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    out = tmp_path / "out"
    for stage, share, act, error in STOPS:
        stopper = Stopper(stage, share, act)
        with pytest.raises(error):
            compare(config(text), out, watcher=stopper)
        assert stage not in stopper.known
        assert not (out / "results.json").exists()
    again = Stopper("", 0, crash)
    results = compare(config(text), out, watcher=again)
    assert {"reading data", "attention, scoring", "measuring training"} <= set(again.known)
    assert apart_from_times(results) == apart_from_times(whole[1])
    for candidate in results["candidates"]:
        files = [folder / candidate["folder"] / "model.safetensors" for folder in (out, whole[0])]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_an_interrupted_run_goes_on_within_its_steps(text: Path, tmp_path: Path) -> None:
    stop = Stopper("attention, training", 0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Interrupted) as stopped:
        compare(config(text), tmp_path / "out", watcher=stop)
    assert stopped.value.signal == signal.SIGINT
    steps = [p.name for p in (tmp_path / "out/work/runs/attention-0/checkpoints").iterdir()]
    assert steps == ["step-00000010"]


def test_a_report_that_was_not_written_is_written_by_the_next_call(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, dict[str, Any]]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in ("settings.json", "results.json"):
        (out / name).write_bytes((whole[0] / name).read_bytes())
    monkeypatch.setattr(module, "Study", crash)  # nothing is computed again
    assert compare(config(text), out) == whole[1]
    assert (out / "report.html").read_bytes() == (whole[0] / "report.html").read_bytes()


def test_results_of_another_version_are_refused(text: Path, tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    (tmp_path / "settings.json").write_bytes((whole[0] / "settings.json").read_bytes())
    (tmp_path / "results.json").write_text(json.dumps({**whole[1], "format": 0}))
    with pytest.raises(ConfigError, match=r"expected results of format 2 in .*, got 0 of another version"):
        compare(config(text), tmp_path)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tokens": 1300}, "tokens was 1200 and is 1300"),
        ({"candidates": "mamba"}, f"candidates was '{CANDIDATES}' and is 'mamba'"),
        ({"model": {"norm": "layernorm"}}, "model was {} and is {'norm': 'layernorm'}"),
    ],
)
def test_other_settings_are_refused_by_name(
    changes: dict[str, Any], named: str, text: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    out = whole[0]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as refused:
        compare(config(text, **changes), out)
    assert named in str(refused.value)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_a_text_that_has_changed_is_refused(tmp_path: Path, whole: tuple[Path, dict[str, Any]]) -> None:
    """Whether the comparison is over or half done."""
    data, out = write_text(tmp_path / "text"), tmp_path / "out"
    with pytest.raises(Crash):
        compare(config(data), out, watcher=Stopper("attention, trying learning rate 0.003", 0, crash))
    (data / "05.txt").write_text("something else")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"the text has changed since .*--overwrite make the comparison anew"):
            compare(config(data), out)
        (out / "results.json").write_bytes((whole[0] / "results.json").read_bytes())


@pytest.mark.parametrize("damaged", ["settings.json", "results.json"])
def test_a_damaged_file_is_named_in_one_sentence(
    damaged: str, text: Path, tmp_path: Path, whole: tuple[Path, dict[str, Any]]
) -> None:
    for name in ("settings.json", "results.json"):
        (tmp_path / name).write_bytes(b"{" if name == damaged else (whole[0] / name).read_bytes())
    with pytest.raises(ConfigError, match=rf"{damaged}' is malformed"):
        compare(config(text), tmp_path)


def test_the_data_of_a_model_are_known(
    text: Path, whole: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """`lavagna evaluate` without DATA scores what the comparison held out, not some other text."""
    out, results = whole
    folder = out / results["candidates"][0]["folder"]
    assert compared_data(folder) == config(text).data
    assert compared_data(out) is None
    evaluate(folder, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["split"], found["bytes"]) == ("validation", results["data"]["held_out"]["bytes"])
    copied = shutil.copytree(out, tmp_path / "copied")
    settings = json.loads((copied / "settings.json").read_text())
    (tmp_path / "other.txt").write_text("another text " * 50)
    settings["data"]["source"] = [str(tmp_path / "other.txt")]
    (copied / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="has changed since: expected DATA"):
        evaluate(copied / results["candidates"][0]["folder"])


def test_a_folder_of_something_else_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("...")
    with pytest.raises(ConfigError, match="expected a comparison, an empty folder or nothing"):
        compare(config(text), tmp_path)
    forget(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_mistake_does_not_occupy_the_folder(text: Path, tmp_path: Path) -> None:
    for wrong in ({"data": {"source": [str(tmp_path / "nowhere.txt")]}}, {"parameters": 10}):
        with pytest.raises((ConfigError, DataError)):
            compare(config(text, **wrong), tmp_path / "out")
    with pytest.raises(Crash):
        compare(config(text), tmp_path / "out", watcher=Stopper("attention, trying learning rate 0.003", 0, crash))
    with pytest.raises(ConfigError, match="other settings: seeds was 1 and is 2"):
        compare(config(text, seeds=2), tmp_path / "out")


def test_forget_removes_the_comparison_and_nothing_else(tmp_path: Path) -> None:
    for name in ("settings.json", "results.json", "report.html", "work/stages/a.json", "models/a/config.json", "notes"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    forget(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes"]


def test_one_long_document_is_measured_by_its_parts(tmp_path: Path, text: Path) -> None:
    single = tmp_path / "log.txt"
    single.write_text("\n".join(path.read_text() for path in sorted(text.iterdir())))
    results = compare(config(single, candidates="attention", learning_rates=[0.02]), tmp_path / "out")
    assert results["data"]["scored_documents"] == 1
    assert results["data"]["parts"] > 10
    quality = results["candidates"][0]["bits_per_byte"]
    assert quality["low"] < quality["value"] < quality["high"]
    said = " ".join(statement["text"] for statement in results["verdict"])
    assert "on more of this document, not on others" in said


def test_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("too short")
    with pytest.raises(DataError, match="at least one context of 32 tokens"):
        compare(config(tmp_path / "short.txt"), tmp_path / "out")


def test_divergence(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lavagna.studies import runs

    train = runs.train

    def diverges(model: Any, training: Any, tune: Any, config: Any, run: Path, **options: Any) -> Any:
        if config.learning_rate > 0.01:
            run.mkdir(parents=True)
            raise NonFiniteError("loss nan at step 3")
        return train(model, training, tune, config, run, **options)

    monkeypatch.setattr(runs, "train", diverges)

    def study(name: str, rates: list[float]) -> Study:
        wanted = config(text, candidates="attention", learning_rates=rates)
        return Study(wanted, tmp_path / name, torch.device("cpu"), Watcher())

    found = choose_rate(study("some", [0.003, 0.02]), 0)
    assert found["chosen"] == 0.003
    assert found["tried"][1] == {"rate": 0.02, "bits_per_byte": None, "reason": "loss nan at step 3"}
    with pytest.raises(ConfigError, match=r"'attention' diverges at every learning rate, the lowest being 0.02"):
        choose_rate(study("all", [0.02, 0.05]), 0)
    with pytest.raises(NonFiniteError, match="attention: loss nan at step 3; give lower learning rates"):
        train_run(study("run", [0.02]), 0, 0, 0.02)


def test_all_candidates_read_the_same_tokens_in_the_same_order(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lavagna.training import loop

    seen: dict[int, list[torch.Tensor]] = {}
    step = loop._Run.step

    def watched(self: Any, number: int) -> Any:
        seen.setdefault(id(self), []).append(self.batches.at(number).tokens)
        return step(self, number)

    monkeypatch.setattr(loop._Run, "step", watched)
    wanted = config(text, candidates="attention,gla", learning_rates=[0.02], tokens=300)
    with pytest.raises(Crash):
        compare(wanted, tmp_path / "out", watcher=Stopper("gla, scoring", 0, crash))
    first, second = list(seen.values())[:2]
    assert len(first) == len(second) == 5
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"learning_rates": []}, "learning_rates must be different numbers above 0"),
        ({"learning_rates": [0.1, 0.1]}, "learning_rates must be different numbers above 0"),
        ({"learning_rates": [float("nan")]}, "learning_rates must be different numbers above 0"),
        ({"read_lengths": [64, 16]}, "read_lengths must grow"),
        ({"candidates": ""}, "patterns of layers between commas"),
        ({"model": {"width": 64}}, "width is solved for"),
        ({"model": {"nrom": "rmsnorm"}}, "did you mean 'norm'"),
        ({"model": {"position": "learned", "max_positions": 99}}, "learned positions end"),
        ({"training": {"steps": 5}}, "steps follows from tokens here"),
        ({"training": {"wieght_decay": 0.1}}, "did you mean 'weight_decay'"),
        ({"seeds": 0}, "greater than or equal to 1"),
        ({"held_out": 0.7, "tune": 0.4}, "held_out and tune must leave something to train on"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, Any], what: str, text: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        config(text, **changes)


def test_the_demo_is_valid_and_its_candidates_can_be_had() -> None:
    demo = CompareConfig.parse(DEMO)
    assert demo.candidates == "attention,mamba,gated_deltanet,3*gated_deltanet+attention"
    assert demo.run_tokens == DEMO["tokens"]
    assert CompareConfig().run_tokens == 20 * CompareConfig().parameters
