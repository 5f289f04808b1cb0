"""What importing scratch brings along: NumPy, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import lavagna.scratch

FOLDER = Path(lavagna.scratch.__file__).parent
MODULES = sorted(
    ".".join(("lavagna", "scratch", *path.relative_to(FOLDER).with_suffix("").parts)).removesuffix(".__init__")
    for path in FOLDER.rglob("*.py")
)


def loaded_after(code: str) -> set[str]:
    """The top-level names of all modules that a new interpreter has loaded after `code`."""
    tell = "import json, sys\nprint(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{tell}"], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout))


def test_all_of_scratch_needs_numpy_and_the_standard_library_alone() -> None:
    assert len(MODULES) > 15
    numpy_alone = loaded_after("import numpy, numpy.typing")
    all_of_it = loaded_after("\n".join(f"import {module}" for module in MODULES))
    assert "torch" not in all_of_it
    assert {name for name in all_of_it - numpy_alone if name not in sys.stdlib_module_names} == {"lavagna"}


def test_the_check_would_see_another_package() -> None:
    assert "pluggy" in loaded_after("import numpy, pluggy")


@pytest.mark.parametrize("package", ["lavagna.scratch", "lavagna.scratch.memory"])
def test_every_public_name_is_there(package: str) -> None:
    module = import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)
