"""What README promises runs, and what it lists is what the registry has."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from lavagna.cli.app import main
from lavagna.studies.zoo import lines

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

#: command -> options that make it small enough for a test, beside those that README gives it
SMALL: dict[str, list[str]] = {
    "compare": [
        *("--candidates", "gated_deltanet,mamba", "--parameters", "20000", "--depth", "1", "--tokens", "512"),
        *("--context", "32", "--batch-size", "4", "--learning-rates", "1e-2"),
    ],
    "plan": [],
    "train": ["--steps", "2", "--context", "32", "--batch-size", "2"],
    "generate": ["--max-tokens", "3"],
    "evaluate": [],
    "zoo": [],
    "lab": [],
    "info": [],
}


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to work in, with the file that README's commands name."""
    lines = [f"2024-01-01 12:{i // 60 % 60:02}:{i % 60:02} INFO request {i * i % 997} served\n" for i in range(400)]
    (tmp_path / "my_logs.txt").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("text")
def test_its_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [shlex.split(line) for block in blocks("sh") for line in block.splitlines()]
    assert {words[1] for words in commands} == set(SMALL)
    for program, name, *arguments in commands:
        assert program == "lavagna"
        small = [] if "--resume" in arguments else SMALL[name]
        with pytest.raises(SystemExit) as left:
            main([name, *arguments, *small])
        printed = capsys.readouterr()
        assert not left.value.code, f"{shlex.join([name, *arguments, *small])}: {printed.err}"
        assert printed.out


def test_its_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (block,) = blocks("")
    for line in block.splitlines():
        make, target = line.split()
        assert make == "make"
        assert f"\n{target}: " in makefile


@pytest.mark.usefixtures("text")
def test_its_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = blocks("python")
    for long, short in (
        ('"stdlib"', '"my_logs.txt"'),
        ("steps=300, context=256", "steps=2, context=32"),
        ("=200", "=5"),
    ):
        assert long in first
        first = first.replace(long, short)
    assert len([line for line in first.splitlines() if line and "import" not in line.split('"')[0]]) <= 10
    exec(compile(first, "README.md", "exec"), {})
    assert capsys.readouterr().out
    exec(compile(second, "README.md", "exec"), {})


def mixers() -> str:
    """The table of the mixers, from the registry."""
    rows = ["| mixer | S_t = | survives through | file |", "| --- | --- | --- | --- |"]
    for line in lines():
        file = f"src/{line.module.replace('.', '/')}.py"
        rows.append(f"| `{line.mixer}` | {line.recurrence} | {line.survives} | [{Path(file).name}]({file}) |")
    return "\n".join(rows)


def test_its_table_of_mixers_is_the_registrys() -> None:
    (table,) = re.findall(r"^<!-- mixers: .*? -->\n(.*?)\n<!-- end of mixers -->$", README, re.MULTILINE | re.DOTALL)
    assert table == mixers()


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link
