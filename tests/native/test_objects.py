"""Files that are compiled once per instruction set share nothing: no code of a wide set can run on a narrow processor.

A symbol that other files may replace (weak) or that runs when the library is loaded (an initialiser) could be compiled
for the widest set and used by all. The check reads the objects of the build, where there are any.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.conftest import ROOT

SOURCES = sorted((ROOT / "csrc" / "kernels").glob("*.cpp"))
OBJECTS = sorted((ROOT / "build").glob("*/CMakeFiles/lavagna_*.dir/csrc/kernels/*.o"))


def symbols(path: Path) -> list[tuple[str, str]]:
    """Kind and demangled name of each symbol of an object."""
    lines = subprocess.run(["nm", "-C", str(path)], capture_output=True, text=True, check=True).stdout.splitlines()
    return [(line[17:18], line[19:]) for line in lines]


def test_an_object_defines_one_table_and_nothing_that_runs_by_itself() -> None:
    assert OBJECTS, "the package was not built in this folder: there is nothing to look at"
    for path in OBJECTS:
        instruction_set = path.parts[-4].removeprefix("lavagna_").removesuffix(".dir")
        found = symbols(path)
        shared = [name for kind, name in found if kind in "wWvVuB"]
        assert shared == [], path
        running = [name for _, name in found if re.search(r"_GLOBAL__sub_I|__cxx_global_var_init|guard variable", name)]
        assert running == [], path
        (external,) = (name for kind, name in found if kind in "TDR")
        assert external.startswith(f"lavagna::{instruction_set}::"), path


def test_sources_declare_no_containers_of_the_standard_library() -> None:
    allowed = {"cmath", "cstddef", "cstdint", "cstring", "limits", "type_traits", "utility"}
    for source in [*SOURCES, *sorted((ROOT / "csrc" / "core").glob("*.h"))]:
        included = set(re.findall(r"#include <(\w+)>", source.read_text(encoding="utf-8")))
        assert included <= allowed, (source.name, included - allowed)
