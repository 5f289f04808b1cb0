"""The native part is there, or says what is missing; nothing in between."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lavagna import native
from lavagna.ops import OPS

pytestmark = pytest.mark.subset


@pytest.fixture(autouse=True)
def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_loaded", None)


def extension_raises(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    def refuse(name: str) -> Any:
        assert name == native.EXTENSION
        raise error

    monkeypatch.setattr(native, "import_module", refuse)


def test_here_it_is_either_usable_or_missing_for_a_reason() -> None:
    assert native.available() == (native.missing() == [])


def test_usable_extension_tells_compiler_and_instruction_sets() -> None:
    if native.available():
        assert re.match(r"(gcc|clang|msvc) .*\d", native.compiler() or "")
        assert native.instruction_sets()[0] == "baseline"
        assert len(set(native.instruction_sets())) == len(native.instruction_sets())
    else:
        assert native.compiler() is None
        assert native.instruction_sets() == []


def test_instruction_sets_agree_with_torch() -> None:
    import torch

    theirs = torch.backends.cpu.get_cpu_capability()
    ours = native.instruction_sets()
    if native.available() and theirs.startswith("AVX512"):
        assert ours[-1] == "avx512"
    if native.available() and theirs == "AVX2":
        assert "avx2" in ours


@pytest.mark.parametrize(
    ("compiler", "remedy"),
    [(None, "install a C++17 compiler"), ("/usr/bin/g++", "LAVAGNA_REQUIRE_NATIVE=1")],
)
def test_extension_that_was_not_built(monkeypatch: pytest.MonkeyPatch, compiler: str | None, remedy: str) -> None:
    monkeypatch.setattr(native.shutil, "which", lambda name: compiler)
    extension_raises(monkeypatch, ModuleNotFoundError("no such module", name=native.EXTENSION))
    assert not native.available()
    (reason,) = native.missing()
    assert "was not built" in reason
    assert remedy in reason
    assert native.kernels() == frozenset()
    for op in OPS:
        assert reason in native.refusals(op)


def test_extension_that_cannot_be_loaded_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    extension_raises(monkeypatch, ImportError("libgomp.so.1: cannot open shared object file"))
    (reason,) = native.missing()
    assert "libgomp.so.1" in reason
    assert "reinstall" in reason


def test_a_module_missing_inside_the_extension_is_no_reason_but_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extension_raises(monkeypatch, ModuleNotFoundError("no module named 'other'", name="other"))
    with pytest.raises(ModuleNotFoundError, match="other"):
        native.available()


def test_every_operator_without_a_kernel_is_refused_with_that_reason() -> None:
    for op in OPS:
        refused = any("no native kernel" in reason for reason in native.refusals(op))
        assert refused == (op not in native.KERNELS)
    assert set(OPS) >= native.KERNELS


def test_the_caller_cannot_change_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    extension_raises(monkeypatch, ImportError("broken"))
    native.missing().clear()
    assert native.missing() != []
