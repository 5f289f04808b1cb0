"""The sources obey the rules of imports, and a breach of each rule would be seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.import_rules import PACKAGE, read_imports, read_modules, violations

SOUND = {
    "__init__": "def __getattr__(name):\n    from . import models",
    "errors": "",
    "shapes": "from .errors import ShapeError",
    "native": "def load():\n    import lavagna._native",
    "ops.__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .conv.api import short_conv",
    "ops.packing": "import torch",
    "ops.conv.__init__": "",
    "ops.conv.api": "from ...shapes import Dims\nfrom ..packing import run\nfrom ... import native",
    "ops.conv.reference": "import math\nimport torch.nn.functional\nfrom ...shapes import Dims",
    "ops.conv.spec": "from .reference import short_conv",
    "ops.linear.__init__": "",
    "ops.linear.api": "from ..packing import run",
    "mixers.__init__": "from .registry import MIXERS",
    "mixers.base": "from ..ops import short_conv",
    "mixers.registry": "MIXERS = {'mamba': 'lavagna.mixers.mamba:Mamba', 's4d': 'lavagna.mixers.s4d:S4D'}",
    "mixers.mamba": "from .base import Mixer",
    "mixers.s4d": "from .base import Mixer",
    "models.__init__": "from ..mixers import MIXERS\nPRESET = 'mamba'",
    "scratch.__init__": "import numpy as np\nfrom ..errors import InputError",
    "training.__init__": "from ..models import LanguageModel",
    "evaluation.__init__": "",
    "studies.__init__": "from lavagna.training import Trainer\nimport lavagna.evaluation",
    "cli.__init__": "from .. import __version__, studies\ndef draw():\n    import matplotlib.pyplot",
}

BREACHES = {
    "upward": ("mixers.mamba", "from ..models import LanguageModel", "upward"),
    "upward in a function": ("ops.packing", "def f():\n    import lavagna.mixers.base", "upward"),
    "upward for types": (
        "models.__init__",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..training import Trainer",
        "upward",
    ),
    "upward through the front": ("shapes", "from . import cli", "upward"),
    "a part without a tier": ("extras.__init__", "", "no tier"),
    "circle": ("ops.packing", "from .conv import api", "circle: "),
    "circle in functions": ("mixers.base", "def f():\n    from .mamba import Mamba", "circle: "),
    "operator imports operator": ("ops.linear.chunk", "from ..conv.api import short_conv", "operators"),
    "reference imports more": ("ops.conv.reference", "import numpy", "reference has"),
    "reference imports ours": ("ops.conv.reference", "from ..packing import run", "reference has"),
    "implementation imports its reference": ("ops.conv.chunk", "from .reference import f", "no implementation"),
    "implementation imports all references": ("ops.conv.chunk", "from . import reference", "no implementation"),
    "mixer imports mixer": ("mixers.s4d", "from .mamba import Mamba", "mixers don't"),
    "model imports mixer": ("models.block", "from ..mixers.mamba import Mamba", "models ask"),
    "model names mixer": ("models.block", "X = 'lavagna.mixers.mamba:Mamba'", "models ask"),
    "scratch imports torch": ("scratch.attention", "def f():\n    import torch", "scratch has"),
    "scratch imports shapes": ("scratch.attention", "from ..shapes import Dims", "scratch has"),
    "heavy": ("data.parquet", "import pyarrow.parquet", "only inside functions"),
    "heavy from": ("report.figures", "from matplotlib import pyplot", "only inside functions"),
    "heavy in a class": ("data.bpe", "class C:\n    import tokenizers", "only inside functions"),
    "native at once": ("ops.conv.cpu", "from ... import _native", "only inside functions"),
}


def plant(source: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = source / PACKAGE / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return source


def test_the_sources_obey_the_rules() -> None:
    assert violations(ROOT / "src") == []


def test_the_sources_were_read() -> None:
    modules = read_modules(ROOT / "src")
    imports = {(i.importer, i.target) for i in read_imports(modules)}
    assert (f"{PACKAGE}.shapes", f"{PACKAGE}.errors") in imports
    assert (f"{PACKAGE}.ops.dispatch", f"{PACKAGE}.native") in imports
    assert (f"{PACKAGE}.ops.dispatch", "torch") in imports


def test_a_sound_tree_has_no_violation(tmp_path: Path) -> None:
    assert violations(plant(tmp_path, SOUND)) == []


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_seen_and_nothing_else(breach: str, tmp_path: Path) -> None:
    module, text, expected = BREACHES[breach]
    found = violations(plant(tmp_path, {**SOUND, module: f"{SOUND.get(module, '')}\n{text}"}))
    name = f"{PACKAGE}.{module}".removesuffix(".__init__")
    assert any(expected in sentence and name in sentence for sentence in found), found
    # An import upward may close a circle as well.
    assert all(name in sentence or sentence.startswith("circle") for sentence in found), found


def test_circle_of_parts(tmp_path: Path) -> None:
    files = {"evaluation.late": "from ..training import Trainer", "training.late": "import lavagna.evaluation"}
    found = violations(plant(tmp_path, {**SOUND, **files}))
    assert found == ["circle of parts: evaluation -> training -> evaluation"]
