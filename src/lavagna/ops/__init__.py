"""The recurrences: one folder each, one public function each.

``OPS`` is the only list of them; tests, benchmarks, ``lavagna info`` and the documentation start from it.
Importing this package does not import torch: an operator's module is loaded when its name is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .conv.api import short_conv as short_conv
    from .delta.api import gated_delta as gated_delta
    from .diagonal.api import diagonal_ssm as diagonal_ssm
    from .dplr.api import generalized_delta as generalized_delta
    from .linear.api import gated_linear as gated_linear
    from .selective.api import selective_scan as selective_scan
    from .softmax.api import attention as attention

#: name of the public function -> the package that holds its api.py, reference.py, spec.py, ...
OPS: dict[str, str] = {
    "attention": "lavagna.ops.softmax",
    "gated_linear": "lavagna.ops.linear",
    "gated_delta": "lavagna.ops.delta",
    "generalized_delta": "lavagna.ops.dplr",
    "selective_scan": "lavagna.ops.selective",
    "diagonal_ssm": "lavagna.ops.diagonal",
    "short_conv": "lavagna.ops.conv",
}

__all__ = ["OPS", *OPS]


def __getattr__(name: str) -> Any:
    if name in OPS:
        return getattr(import_module(f"{OPS[name]}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
