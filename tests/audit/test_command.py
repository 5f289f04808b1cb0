"""`lavagna audit`: verdicts, files and exit statuses, as one who calls it sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

from lavagna.audit import load_target
from lavagna.cli import app
from lavagna.errors import InputError
from lavagna.models import Classifier, ClassifierConfig, LanguageModel, LanguageModelConfig

from .twins import padding

Run = Callable[..., tuple[int, str, str]]
CONFIG: dict[str, Any] = {"vocab_size": 29, "width": 16, "layers": "gla"}
FACTORY = f"{padding.__name__}:MaskIgnored"
module = nn.Linear(3, 3)
not_a_model = 7


def no_model() -> int:
    return 7


def needs(x: int) -> nn.Module:
    return nn.Linear(x, x)


def raises() -> nn.Module:
    raise TypeError("no\nweights")


def leaves() -> nn.Module:
    raise SystemExit(3)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            app.main(["audit", *arguments])
        printed = capsys.readouterr()
        code = left.value.code or 0
        assert isinstance(code, int)
        return code, printed.out, printed.err

    return run


def test_a_sound_model_in_a_folder_is_status_0(run: Run, tmp_path: Path) -> None:
    LanguageModel(LanguageModelConfig.parse(CONFIG), seed=0).save(tmp_path / "model")
    status, out, _ = run(str(tmp_path / "model"), "--max-tokens", "20")
    assert status == 0
    assert "reads tokens below 29" in " ".join(out.split())
    assert "24 traps: 0 failed" in out
    assert run(str(tmp_path), "--max-tokens", "9")[0] == 0, "a run's folder is taken for its model"


def test_a_failure_is_status_1_with_example_cause_and_remedy(run: Run, tmp_path: Path) -> None:
    torch.manual_seed(0)
    junit = tmp_path / "audit.xml"
    status, out, _ = run(FACTORY, "--max-tokens", "20", "--junit", str(junit))
    assert status == 1
    assert "FAIL  padding attended" in out
    assert "1. padding attended (padding)" in out
    assert "smallest example: 1 row of 2 tokens" in out
    assert "likely cause: the mask is ignored" in out
    assert "remedy: hide padded keys" in out
    assert max(map(len, out.splitlines())) <= 80
    assert ElementTree.parse(junit).getroot().get("failures") == "2"


def test_json_is_all_of_standard_output(run: Run) -> None:
    status, out, _ = run(
        FACTORY, "--max-tokens", "20", "--json", "--allow", "padding", "--allow", "state-after-padding"
    )
    assert status == 0
    result = json.loads(out)
    assert result["model"] == FACTORY
    assert {f["trap"] for f in result["findings"] if f["status"] == "accepted"} == {"padding", "state-after-padding"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "expected a model's folder or package.module:factory, got 'nowhere'"),
        (["lavagna.nowhere:make"], "expected a module that can be imported, got 'lavagna.nowhere'"),
        ([f"{__name__}:nothing"], "has no 'nothing'"),
        ([f"{__name__}:not_a_model"], "to be a factory, got a int"),
        ([f"{__name__}:no_model"], "to return a module or a function, got a int"),
        ([f"{__name__}:needs"], "a factory without arguments, but it needs x"),
        ([f"{__name__}:raises"], ":raises' to make a model, but it raised TypeError: no weights"),
        ([f"{__name__}:leaves"], ":leaves' to make a model, but it raised SystemExit: 3"),
        (["lavagna_:make"], "got 'lavagna_', but it raised ModuleNotFoundError"),
        ([":make"], "expected package.module:factory, got ':make'"),
        (["json:"], "expected package.module:factory, got 'json:'"),
        ([FACTORY, "--allow", "paddings"], "unknown trap 'paddings'; did you mean 'padding'?"),
        ([FACTORY, "--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run: Run, arguments: list[str], message: str) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("lavagna: ")
    assert len(err.splitlines()) == 1


def test_folders_that_are_no_models_are_refused(run: Run, tmp_path: Path) -> None:
    status, _, err = run(str(tmp_path))
    assert status == 2
    assert "expected a model or a run" in err
    config = tmp_path / "config.json"
    for text, message in (
        ("{", "is no JSON"),
        ("{}", "names neither"),
        ('{"model_type": "nothing"}', "transformers can load"),
    ):
        config.write_text(text)
        status, _, err = run(str(tmp_path))
        assert status == 2
        assert message in err


@pytest.mark.parametrize(
    ("text", "message"), [("def f(:", "SyntaxError"), ("raise RuntimeError('at import')", "RuntimeError: at import")]
)
def test_a_module_that_cannot_be_imported_is_one_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    (tmp_path / "broken_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    status, out, err = run("broken_module:make")
    assert (status, out) == (2, "")
    assert f"got 'broken_module', but it raised {message}" in err
    assert len(err.splitlines()) == 1


def test_what_a_model_of_ours_reads_cannot_be_told(run: Run, tmp_path: Path) -> None:
    LanguageModel(LanguageModelConfig.parse(CONFIG), seed=0).save(tmp_path)
    status, _, err = run(str(tmp_path), "--width", "3")
    assert status == 2
    assert "LanguageModel says itself what it reads" in err


def test_targets(tmp_path: Path) -> None:
    assert load_target(f"{__name__}:module") is module
    config = ClassifierConfig.parse({**CONFIG, "tied": False, "classes": 2})
    Classifier(config, seed=0).save(tmp_path / "classifier")
    assert isinstance(load_target(str(tmp_path / "classifier")), Classifier)
    with pytest.raises(InputError):
        load_target("nowhere")


@pytest.mark.peers
def test_a_folder_of_transformers(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.disable_progress_bar()
    GPT2LMHeadModel(GPT2Config(vocab_size=29, n_embd=8, n_layer=1, n_head=2, n_positions=16)).save_pretrained(tmp_path)
    assert isinstance(load_target(str(tmp_path)), GPT2LMHeadModel)
