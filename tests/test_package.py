"""What importing costs: no torch for the package itself, little beyond torch for the models."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

import lavagna
from tests.conftest import ROOT
from tests.import_rules import read_imports, read_modules

HEAVY = ("torch", "triton", "transformers", "matplotlib", "pyarrow", "tokenizers")


def fresh_process(code: str) -> str:
    """What `code` prints in a new interpreter."""
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120).stdout


def heavy_after(code: str) -> list[str]:
    """Those of HEAVY that are loaded after `code` in a new interpreter."""
    tell = f"import json, sys\nprint(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    return json.loads(fresh_process(f"{code}\n{tell}").splitlines()[-1])


@pytest.mark.parametrize(
    "code",
    [
        "import lavagna; lavagna.__version__; dir(lavagna)",
        "import lavagna.native; lavagna.native.refusals('gated_delta')",
        "import lavagna.ops",
        "import lavagna.cli.app",
        "from lavagna.cli.app import main\ntry:\n    main(['--version'])\nexcept SystemExit:\n    pass",
    ],
)
def test_is_imported_without_anything_heavy(code: str) -> None:
    assert heavy_after(code) == []


def test_models_bring_torch_and_nothing_else_that_is_heavy() -> None:
    assert heavy_after("import lavagna.models") == ["torch"]


def test_models_are_imported_within_two_seconds_beyond_torch() -> None:
    code = """
import time
import torch
start = time.perf_counter()
import lavagna.models
print(time.perf_counter() - start)
"""
    assert float(fresh_process(code)) < 2


@pytest.mark.parametrize("name", [name for name in dir(lavagna) if name[0] != "_"])
def test_every_lazy_name_leads_somewhere(name: str) -> None:
    assert getattr(lavagna, name).__name__.rpartition(".")[2] == name


def test_models_operators_and_mixers_are_listed() -> None:
    assert {"LanguageModel", "ModelState", "generate", "ops", "mixers", "models", "training"} <= set(dir(lavagna))


def test_type_checkers_see_every_lazy_name() -> None:
    imports = read_imports([m for m in read_modules(ROOT / "src") if m.name == "lavagna"])
    seen = [i.target.removeprefix("lavagna.") for i in imports if i.for_types_only]
    assert sorted(seen) == sorted(lavagna._NAMES.values())


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'lavagna' has no attribute 'langage_model'"):
        _ = lavagna.langage_model


def test_installed_metadata_has_the_version_of_the_sources() -> None:
    from importlib.metadata import version

    assert version("lavagna") == lavagna.__version__


def test_every_dependency_is_pinned_and_the_pin_obeys_its_bound() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(r for rs in project["optional-dependencies"].values() for r in rs)]
    pins = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    )
    pins = {canonicalize_name(name): pin for name, pin in pins.items()}
    for requirement in map(Requirement, wanted):
        if requirement.name != "lavagna":
            assert pins[canonicalize_name(requirement.name)] in requirement.specifier, requirement
