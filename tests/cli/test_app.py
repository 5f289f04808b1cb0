"""The command line as a process sees it: status, standard error, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lavagna import __version__
from lavagna.cli import app
from lavagna.errors import DataError


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process: exit status, standard output, standard error."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            app.main(arguments)
        printed = capsys.readouterr()
        return left.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Put a function in the place of the command `info`."""

    def replace(function: Callable[[], None]) -> None:
        monkeypatch.setattr(app, "_load", lambda target: function)

    return replace


def test_help_lists_every_command(run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = run("--help")
    assert status == 0
    for name in app.COMMANDS:
        assert f" {name} " in out


@pytest.mark.parametrize("name", app.COMMANDS)
def test_every_command_has_help(name: str, run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, _ = run(name, "--help")
    assert status == 0
    assert f"lavagna {name}" in out


def test_version(run: Callable[..., tuple[int, str, str]]) -> None:
    assert run("--version") == (0, f"lavagna {__version__}\n", "")


def test_our_errors_are_one_line_and_status_2(
    run: Callable[..., tuple[int, str, str]], command: Callable[[Callable[[], None]], None]
) -> None:
    def fails() -> None:
        raise DataError("expected a folder or file, got nothing.txt, which does not exist")

    command(fails)
    status, out, err = run("info")
    assert (status, out) == (2, "")
    assert err == "lavagna: expected a folder or file, got nothing.txt, which does not exist\n"


def test_a_file_that_cannot_be_used_is_one_line_and_status_2(
    run: Callable[..., tuple[int, str, str]],
    command: Callable[[Callable[[], None]], None],
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    command(lambda: (tmp_path / "file" / "folder").mkdir())
    status, out, err = run("info")
    assert (status, out) == (2, "")
    assert err == f"lavagna: cannot use {str(tmp_path / 'file' / 'folder')!r}: Not a directory\n"


def test_an_interrupt_is_quiet_and_status_130(
    run: Callable[..., tuple[int, str, str]], command: Callable[[Callable[[], None]], None]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    command(interrupted)
    assert run("info") == (130, "", "")


def test_a_fault_of_ours_is_not_dressed_up(command: Callable[[Callable[[], None]], None]) -> None:
    def broken() -> None:
        raise ZeroDivisionError

    command(broken)
    with pytest.raises(ZeroDivisionError):
        app.main(["info"])


@pytest.mark.parametrize("arguments", [("nonsense",), ("info", "--nonsense"), ("info", "nonsense")])
def test_wrong_arguments_are_status_2(arguments: tuple[str, ...], run: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert "nonsense" in err
    assert "Traceback" not in err


def test_other_commands_run_while_one_is_missing(
    run: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(app.COMMANDS, "later", ("not_there:later", "Not written yet."))
    assert run("info", "--help")[0] == 0
    assert "later" in run("--help")[1]


ENTRY = """
from importlib.metadata import entry_points
(point,) = entry_points(group="console_scripts", name="lavagna")
point.load()()
"""


def test_the_installed_program_is_this_command_line() -> None:
    program = subprocess.run(
        [sys.executable, "-c", ENTRY, "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert program.stdout == f"lavagna {__version__}\n"
