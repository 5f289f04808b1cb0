"""What stands between the kernels of a recorded step: the bits of torch's own operators, at any length."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from lavagna import native

pytestmark = pytest.mark.subset

SETS = native.instruction_sets()
EDGES = [0.0, -0.0, 1.0, -1.0, 3.0e38, -3.4e38, 1e-40, float("inf"), -float("inf"), 1.00390625, 1.01171875, 2**-126]

each_length = pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 8, 15, 16, 17, 32, 33, 100])


@pytest.fixture(autouse=True, params=range(len(SETS)), ids=SETS)
def _instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    before = SETS.index(native.instruction_set() or "")
    native.module().choose_instruction_set(request.param)
    yield
    native.module().choose_instruction_set(before)


def numbers(count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers of all sizes; the first are edges, in another order for each seed."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, generator=generator) * 10.0 ** torch.randint(-30, 30, (count,), generator=generator)
    edges = torch.tensor(EDGES)[torch.randperm(len(EDGES), generator=generator)][:count]
    drawn[: len(edges)] = edges
    return drawn.to(dtype)


def with_walls(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Room for so many numbers, and the memory around it."""
    memory = torch.full((count + 8,), 7.0, dtype=dtype)
    return memory[4 : 4 + count], memory


def check(call: Callable[..., None], expected: Tensor, *inputs: Tensor) -> None:
    y, memory = with_walls(expected.numel(), expected.dtype)
    call(expected.numel(), *(x.data_ptr() for x in inputs), y.data_ptr())
    torch.testing.assert_close(y, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(torch.signbit(y)[~y.isnan()], torch.signbit(expected)[~y.isnan()])
    assert bool((memory[:4] == 7).all())
    assert bool((memory[-4:] == 7).all())


@each_length
@pytest.mark.parametrize(("kind", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
@pytest.mark.parametrize(("name", "function"), [("add", torch.add), ("multiply", torch.mul)])
def test_two_tensors(name: str, function: Callable[..., Tensor], kind: str, dtype: torch.dtype, count: int) -> None:
    for seed in range(5):
        a, b = numbers(count, dtype, seed), numbers(count, dtype, seed + 100)
        check(getattr(native.module(), f"{name}_{kind}"), function(a, b), a, b)


@each_length
def test_formats(count: int) -> None:
    for seed in range(5):
        wide = numbers(count, torch.float32, seed)
        check(native.module().narrow, wide.bfloat16(), wide)
        check(native.module().widen, wide.bfloat16().float(), wide.bfloat16())
        check(native.module().widen, torch.full((count,), float("nan")), torch.full((count,), float("nan")).bfloat16())
        check(native.module().narrow, torch.full((count,), float("nan")).bfloat16(), torch.full((count,), float("nan")))


def test_copies() -> None:
    source = torch.randint(0, 255, (77,), dtype=torch.uint8)
    check(native.module().copy, source, source)
