"""Tensors of more than 2³¹ elements: offsets in 64 bits. `pytest -m large` runs these; they need 12 GB of free memory.

Pages of the system that nobody wrote cost no memory, and reading one finds zeros. Only the last tokens are anything
else, so that they give what they give alone.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from lavagna.ops.spec import Case, Inputs, OpSpec

from ..support.budget import close
from ..support.operators import draw, named_inputs, resized, run, timed_names
from .support import NATIVE, native_row

pytestmark = pytest.mark.large

TOKENS = (1 << 20) + 8
WIDE = 1 << 11
LAST = 8

NEEDED = 12 << 30


def available_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        (line,) = (line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) << 10


@pytest.fixture(autouse=True)
def _few_pages() -> None:
    """Ask for the memory, and let torch leave what it allocates as it is: filling it would take all of it."""
    assert available_bytes() >= NEEDED, f"needs {NEEDED >> 30} GB of free memory"
    torch.utils.deterministic.fill_uninitialized_memory = False


def untouched(*shape: int) -> Tensor:
    """Zeros that take no memory until they are written; torch.zeros writes them."""
    size = 4 * torch.Size(shape).numel()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


def small(spec: OpSpec, **sizes: int) -> Inputs:
    case: Case = next(case for case in spec.cases if case.sizes["T"] == 65)
    chosen = {letter: size for letter, size in {"B": 1, "T": LAST, **sizes}.items() if letter in case.sizes}
    return draw(spec, resized(case, **chosen))._replace(state=None)


def at_the_end(spec: OpSpec, inputs: Inputs, stride: int | None = None) -> Inputs:
    """The same tokens behind a million of zeros; `stride` numbers apart, if that is given."""
    tensors: Mapping[str, Tensor | None] = inputs.tensors
    long = dict(tensors)
    for name in timed_names(spec, inputs):
        few = tensors[name]
        width = few[0, 0].numel()
        memory = untouched(TOKENS, stride or width)[None, :, :width]
        memory[:, -LAST:] = few.flatten(2)
        long[name] = memory.unflatten(-1, few.shape[2:]) if few.ndim > 3 else memory.view(1, TOKENS, *few.shape[2:])
    return inputs._replace(tensors=long)


@pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.op)
def test_outputs_past_the_range_of_32_bits(spec: OpSpec) -> None:
    inputs = small(spec, D=WIDE, V=WIDE, H=1, HV=1, K=4, N=1, G=1)
    torch.set_num_threads(2)
    with torch.no_grad():
        alone = run(spec, native_row(spec), inputs)
        long = run(spec, native_row(spec), at_the_end(spec, inputs))
    assert long.output.numel() > 1 << 31
    close("output", long.output[:, -LAST:], alone.output, 1e-5)


@pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.op)
def test_rows_past_the_range_of_32_bits(spec: OpSpec) -> None:
    """Narrow parts of wide rows, forward and backward."""
    inputs = small(spec, D=4, V=4, H=1, HV=1, K=4, N=1, G=1)
    found = []
    for given in (inputs, at_the_end(spec, inputs, WIDE)):
        tensors = {n: t if t is None else t.detach().requires_grad_() for n, t in given.tensors.items()}
        given = given._replace(tensors=tensors)
        result = run(spec, native_row(spec), given)
        named = named_inputs(given)
        ups = torch.zeros_like(result.output)
        ups[:, -LAST:] = 1
        each = torch.autograd.grad(result.output, list(named.values()), ups)
        found.append(
            {n: g[:, -LAST:] if n in timed_names(spec, given) else g for n, g in zip(named, each, strict=True)}
        )
    for name, gradient in found[0].items():
        close(f"gradient of {name}", found[1][name], gradient, 1e-4)
