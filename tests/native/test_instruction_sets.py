"""LAVAGNA_CPU_ISA forces an instruction set, and a name that is none is refused in one sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from lavagna import native

from .support import prints, run_code, run_python

COMMAND = ["-c", "from lavagna.cli.app import main; main(['info'])"]


@pytest.mark.parametrize("name", native.instruction_sets())
def test_a_name_forces_it(name: str) -> None:
    assert prints("print(native.instruction_set())", LAVAGNA_CPU_ISA=name) == f"{name}\n"


def test_no_name_means_the_widest() -> None:
    assert prints("print(native.instruction_set())", LAVAGNA_CPU_ISA="") == f"{native.instruction_sets()[-1]}\n"


def test_the_sets_agree(tmp_path: Path) -> None:
    """Sums in another order, no more than that."""
    found = []
    for name in native.instruction_sets():
        path = tmp_path / name
        prints(f"torch.save([call(op) for op in OPS], {str(path)!r})", LAVAGNA_CPU_ISA=name)
        found.append(torch.load(path))
    for other in found[1:]:
        for some, same in zip(found[0], other, strict=True):
            for a, b in zip(some, same, strict=True):
                assert (a - b).abs().max() <= 2e-5 * a.abs().max()


def test_an_unknown_name_is_refused() -> None:
    done = run_code("", LAVAGNA_CPU_ISA="sse9")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lavagna.errors.BackendError: unknown LAVAGNA_CPU_ISA on this processor 'sse9'")


def test_the_command_line_refuses_it_in_one_line() -> None:
    done = run_python(COMMAND, environment={"LAVAGNA_CPU_ISA": "sse9"})
    assert done.returncode == 2
    assert re.fullmatch(r"lavagna: unknown LAVAGNA_CPU_ISA on this processor 'sse9'.*baseline.*\n", done.stderr)
