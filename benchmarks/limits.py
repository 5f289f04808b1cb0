"""What this machine can do at all, measured in the same run as what is compared with it."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from lavagna import native

from .measure import Make, Side

__all__ = ["LIMITS", "exponentials", "huge", "multiply_add", "product", "read", "update"]

MB = 1 << 20


def product(dtype: torch.dtype = torch.float32, size: int = 1024) -> Make:
    """A square product by torch; work in FLOPs."""

    def make() -> Side:
        a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
        into = torch.empty(size, size, dtype=dtype)
        return Side(lambda: torch.mm(a, b, out=into), 2.0 * size**3)

    return make


def multiply_add() -> Side:
    """Products and sums in registers of the instruction set in use; work in FLOPs."""
    library, data, sums = native.module(), torch.full((16,), 0.5), torch.zeros(256)
    steps = 50_000

    def run() -> Any:
        return library.limits_multiply_add(torch.get_num_threads(), data.data_ptr(), steps, sums.data_ptr())

    return Side(run, 2.0 * run())


def exponentials() -> Side:
    """The exponential that kernels use, on numbers in L1; work in exponentials."""
    library, data, sums = native.module(), torch.randn(4096) - 3, torch.zeros(256)

    def run() -> Any:
        return library.limits_exponentials(
            torch.get_num_threads(), data.data_ptr(), data.numel(), 1000, sums.data_ptr()
        )

    return Side(run, float(run()))


def huge(*shape: int) -> Tensor:
    """Zeros in float32 on huge pages, where the system gives them."""
    count = torch.Size(shape).numel()
    memory = mmap.mmap(-1, 4 * count + 4 * MB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(memory, "madvise"):
        memory.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
    first = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % (2 * MB)
    return torch.frombuffer(memory, dtype=torch.float32, offset=first, count=count).view(shape).zero_()


def read(size: int, allocate: Callable[[int], Tensor] = torch.zeros) -> Make:
    """Read so many bytes once; work in bytes."""

    def make() -> Side:
        library, data = native.module(), allocate(size // 4).fill_(1)
        sums = torch.zeros(data.numel() // library.limits_piece + 1)
        return Side(
            lambda: library.limits_read(torch.get_num_threads(), data.data_ptr(), data.numel(), sums.data_ptr()), size
        )

    return make


def update(size: int, total: int | None = None, allocate: Callable[[int], Tensor] = torch.zeros) -> Make:
    """Read and write so many bytes in place, the next ones of `total` at each call; work in bytes moved."""

    def make() -> Side:
        library, data = native.module(), allocate((total or size) // 4).fill_(1)
        pieces = cycle(data.split(size // 4))

        def run() -> None:
            piece = next(pieces)
            library.limits_update(torch.get_num_threads(), piece.data_ptr(), piece.numel())

        return Side(run, 2.0 * size)

    return make


#: name -> (unit, factor from work per second to the unit, side); each is measured at 1 and 2 threads
LIMITS: dict[str, tuple[str, float, Make]] = {
    "multiply-adds in registers, float32": ("GFLOP/s", 1e-9, multiply_add),
    "torch product 1024³, float32": ("GFLOP/s", 1e-9, product()),
    "torch product 1024³, bfloat16": ("GFLOP/s", 1e-9, product(torch.bfloat16)),
    "exponentials, float32": ("G/s", 1e-9, exponentials),
    "read 512 KB": ("GB/s", 1e-9, read(MB // 2)),
    "read and write 512 KB in place": ("GB/s", 1e-9, update(MB // 2)),
    "read 256 MB": ("GB/s", 1e-9, read(256 * MB)),
    "read 256 MB, huge pages": ("GB/s", 1e-9, read(256 * MB, huge)),
    "read and write 256 MB in place": ("GB/s", 1e-9, update(256 * MB)),
    "read and write 256 MB in place, huge pages": ("GB/s", 1e-9, update(256 * MB, allocate=huge)),
}
