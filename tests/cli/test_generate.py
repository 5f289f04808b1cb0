"""`lavagna generate` as people use it."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lavagna.cli import generate as command
from lavagna.generation import Piece, Reading
from lavagna.models import LanguageModel
from lavagna.ops.tree import leaves
from tests.cli.conftest import Command
from tests.conftest import ROOT
from tests.support.models import make_model


def test_a_pipe_gets_the_text_alone(lavagna: Command, trained: Path) -> None:
    printed = lavagna("generate", trained, "a page", "--max-tokens", 20, "--greedy")
    assert printed.status == 0
    assert printed.err == ""
    text = printed.out
    assert text.endswith("\n")
    assert 0 < len(text) <= 21
    assert "a page" not in text[:3]
    again = lavagna("generate", trained / "model", "a page", "--max-tokens", 20, "--temperature", 0)
    assert again.out == text


def test_trained_text_looks_like_its_data(lavagna: Command, trained: Path) -> None:
    """After thirty steps: words and blanks, no other bytes."""
    text = lavagna("generate", trained, "memory", "--max-tokens", 60, "--temperature", 0.5).out
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz \n")


def test_seeds_and_samples(lavagna: Command, trained: Path) -> None:
    def run(*options: object) -> str:
        return lavagna("generate", trained, "a", "--max-tokens", 15, "--temperature", 2, *options).out

    assert run("--seed", 1) == run("--seed", 1) != run("--seed", 2)
    three = lavagna("generate", trained, "a", "--max-tokens", 15, "--temperature", 2, "--seed", 1, "-n", 3)
    assert three.out == run("--seed", 1) + run("--seed", 2) + run("--seed", 3)
    assert [line for line in three.err.splitlines() if line] == [f"── sample {n} of 3" for n in (1, 2, 3)]


def test_filters_reach_the_sampler(lavagna: Command, trained: Path) -> None:
    greedy = lavagna("generate", trained, "a", "--max-tokens", 15, "--greedy").out
    for option in (["--top-k", 1], ["--top-p", 1e-9], ["--min-p", 1]):
        assert lavagna("generate", trained, "a", "--max-tokens", 15, *option).out == greedy


def test_stop_strings(lavagna: Command, trained: Path) -> None:
    free = lavagna("generate", trained, "a page", "--max-tokens", 30, "--greedy").out.rstrip("\n")
    stop = free[4:6]
    stopped = lavagna("generate", trained, "a page", "--max-tokens", 30, "--greedy", "--stop", "@", "--stop", stop).out
    assert stopped == free[: free.index(stop)] + "\n"


def test_prompts_from_files_and_standard_input(
    lavagna: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompt").write_bytes(b"memory \xff fades ")
    options = ["--max-tokens", 10, "--greedy", "--prefill-chunk", 3]
    from_file = lavagna("generate", trained, "away", "--prompt-file", tmp_path / "prompt", *options).out
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"memory \xff fades ")))
    assert lavagna("generate", trained, "away", "--prompt-file", "-", *options).out == from_file
    assert lavagna("generate", trained, *options).status == 0  # a document from its start


def test_a_state_is_gone_on_from_in_another_process(lavagna: Command, trained: Path, tmp_path: Path) -> None:
    """Reading a document and asking about it: one process or two, the same text."""
    document = tmp_path / "document"
    document.write_text("memory fades a page erase write read " * 20)
    state = tmp_path / "state"
    whole = lavagna(
        "generate", trained, "write", "--prompt-file", document, "--max-tokens", 25, "--temperature", 0.8
    ).out
    read_only = lavagna("generate", trained, "--prompt-file", document, "--save-state", state, "--max-tokens", 0)
    assert (read_only.out, read_only.err) == ("", f"state saved in {state}\n")
    process = subprocess.run(
        [
            *(sys.executable, "-m", "lavagna.cli.app", "generate", str(trained), "write"),
            *("--load-state", str(state), "--max-tokens", "25", "--temperature", "0.8"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert process.stdout == whole
    assert process.stderr == ""
    # Several continuations of one state; and without a prompt the state's own.
    assert lavagna("generate", trained, "--load-state", state, "-n", 2, "--max-tokens", 3).status == 0


def test_the_state_is_saved_before_anything_is_generated(lavagna: Command, trained: Path, tmp_path: Path) -> None:
    model = LanguageModel.load(trained / "model")
    for name, tokens in (("a", 0), ("b", 9)):
        lavagna("generate", trained, "read", "--save-state", tmp_path / name, "--max-tokens", tokens)
    a, b = (Reading.load(tmp_path / name, model) for name in "ab")
    assert torch.equal(a.logits, b.logits)
    assert all(torch.equal(x, y) for x, y in zip(leaves(a.state), leaves(b.state), strict=True))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "expected a model or a run, but 'nothing' does not exist"),
        (["."], "expected a model or a run, but '.' holds neither"),
        (["RUN", "--greedy", "--temperature", "0.7"], "expected --greedy or --temperature, got both"),
        (["RUN", "--temperature", "-1"], "sampling: temperature: Input should be greater than or equal to 0, got -1.0"),
        (["RUN", "--top-p", "0"], "sampling: top_p"),
        (["RUN", "--top-k", "0"], "sampling: top_k"),
        (["RUN", "--min-p", "2"], "sampling: min_p"),
        (["RUN", "-n", "0"], "--samples must be at least 1, got 0"),
        (["RUN", "--max-tokens", "-1"], "--max-tokens must be at least 0, got -1"),
        (["RUN", "--prefill-chunk", "0"], "--prefill-chunk must be at least 1, got 0"),
        (["RUN", "--stop", ""], "a stop string must not be empty"),
        (["RUN", "--prompt-file", "nothing"], "cannot read 'nothing': No such file or directory"),
        (["RUN", "--load-state", "nothing"], "state file 'nothing' does not exist"),
        (["RUN", "--load-state", "two-rows"], "expected the state of one text, got one of 2 in 'two-rows'"),
        (["RUN", "--load-state", "other"], "'other' was saved by another configuration"),
        (["RUN", "--device", "cuda"], "expected a device that torch can use here, got 'cuda'"),
    ],
)
def test_bad_input_is_one_sentence(
    lavagna: Command,
    trained: Path,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    model, other = LanguageModel.load(trained / "model"), make_model("mamba")
    model.init_state(2).save("two-rows", model, logits=torch.zeros(2, 257))
    other.init_state(1).save("other", other, logits=torch.zeros(1, 257))
    state = ["--save-state", str(tmp_path / "state")]
    printed = lavagna("generate", *[str(trained) if a == "RUN" else a for a in arguments], *state)
    assert printed.status == 2
    assert printed.out == ""
    assert printed.err.startswith("lavagna: ")
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "state").exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def open_screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """One terminal for what is printed and for notes; within the test, for capturing begins anew after fixtures."""
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    monkeypatch.setattr("sys.stderr", screen)
    return screen


def plain(screen: Terminal) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", screen.getvalue())


def test_a_terminal_shows_the_prompt_and_what_follows_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, seen = open_screen(monkeypatch), []

    def pieces():
        for text in ("x", "y"):
            yield Piece(0, text, False)
            seen.append(plain(screen))
        yield Piece(0, "", True)

    command._show(pieces(), 1, "prompt ")
    assert seen == ["prompt x", "prompt xy"]
    assert plain(screen) == "prompt xy\n"


def test_samples_take_turns_on_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made side by side, shown one after the other: what is not yet its turn waits."""
    screen, seen = open_screen(monkeypatch), []

    def pieces():
        for piece in (Piece(0, "a", False), Piece(1, "k", False), Piece(2, "x", False), Piece(1, "l", True)):
            yield piece
            seen.append(plain(screen).splitlines()[-1])
        for piece in (Piece(0, "b", True), Piece(2, "y", False), Piece(2, "", True)):
            yield piece
            seen.append(plain(screen).splitlines()[-1])

    command._show(pieces(), 3, "> ")
    assert seen == ["> a", "> a", "> a", "> a", "> x", "> xy", "> xy"]
    assert plain(screen) == "".join(f"── sample {n} of 3\n> {text}\n" for n, text in ((1, "ab"), (2, "kl"), (3, "xy")))


def test_no_text_commands_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_screen(monkeypatch)
    command._show(iter([Piece(0, "a\x1b[2J\x07\tb\nc\x9b", True)]), 1, "\x1b]0;title\x07")
    assert plain(screen) == "␛]0;title␇a␛[2J␇\tb\nc�\n"


def test_of_a_long_prompt_only_the_end_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = open_screen(monkeypatch)
    command._show(iter([Piece(0, "!", True)]), 1, "a" * 1000 + "b" * command.SHOWN)
    assert plain(screen) == "…" + "b" * command.SHOWN + "!\n"
