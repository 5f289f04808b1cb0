"""What the tests of the native part share: operators that have kernels, and code run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

from lavagna import native
from lavagna.ops.dispatch import Row
from lavagna.ops.spec import OpSpec

from ..support.operators import SPECS

NATIVE = [spec for spec in SPECS if spec.op in native.kernels()]

#: sizes at which every operator has several tasks to share among threads
SHARED = {"B": 2, "T": 70, "D": 200, "HV": 4, "H": 2}


def native_row(spec: OpSpec) -> Row:
    return next(row for row in spec.table.rows if row.impl == "cpu")


#: names for code in another process: calls of every operator with kernels, on two threads
PRELUDE = """
import torch
from lavagna.ops.spec import load_spec
from lavagna import native

torch.set_num_threads(2)

def prepare(op, T=70):
    spec = load_spec(op)
    case = spec.cases[0]
    sizes = {k: v for k, v in {"B": 2, "T": T, "D": 200, "HV": 4, "H": 2}.items() if k in case.sizes}
    case = case._replace(sizes={**case.sizes, **sizes})
    return spec.make(case, torch.Generator().manual_seed(0), torch.float32)

def call(op, T=70, gradients=True, inputs=None):
    spec, inputs = load_spec(op), inputs or prepare(op, T)
    tensors = {n: t.requires_grad_(gradients) for n, t in inputs.tensors.items() if t is not None}
    output = spec.function(**tensors, **inputs.options, state=inputs.state, impl="cpu").output
    return [output.detach(), *(torch.autograd.grad(output.sum(), list(tensors.values())) if gradients else ())]

OPS = sorted(spec for spec in native.kernels())
"""


def run_code(code: str, *, timeout: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a new process; a hang becomes TimeoutExpired."""
    return run_python(["-c", PRELUDE + textwrap.dedent(code)], timeout=timeout, environment=environment)


def run_python(
    arguments: list[str], *, timeout: float = 60, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )


def prints(code: str, **environment: str) -> str:
    """What the code prints; it must end well and say nothing else."""
    done = run_code(code, **environment)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout
