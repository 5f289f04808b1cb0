"""One OpenMP runtime in the process: torch's. A second one would fight it for the cores."""

from __future__ import annotations

from lavagna import native

from .support import prints


def test_torch_has_a_runtime_that_kernels_can_use() -> None:
    addresses = native._torch_openmp()
    assert addresses is not None
    assert all(addresses)


def test_the_process_holds_one_runtime() -> None:
    """After torch's own products, and after ours, on two threads."""
    printed = prints(
        """
        import re
        torch.randn(500, 500) @ torch.randn(500, 500)
        for op in OPS:
            call(op)
        with open("/proc/self/maps") as maps:
            files = {line.split()[-1] for line in maps if "/" in line}
        print(*sorted(f for f in files if re.search(r"/lib(g|i|ll)?omp[^/]*\\.so", f)), sep="\\n")
        """
    )
    assert len(printed.split()) == 1, printed


def test_the_extension_links_none() -> None:
    with open(native.module().__file__, "rb") as file:
        library = file.read()
    assert b"libgomp" not in library
    assert b"libomp" not in library


def test_kernels_run_on_as_many_threads_as_torch() -> None:
    """Each thread of a team shows among those of the process that have used the processor."""
    printed = prints(
        """
        import os

        def ticks(thread):
            with open(f"/proc/self/task/{thread}/stat") as stat:
                return int(stat.read().rpartition(")")[2].split()[11])

        def worked():
            return sum(ticks(thread) > 2 for thread in os.listdir("/proc/self/task"))

        module, numbers, sums = native.module(), torch.zeros(4096), torch.zeros(64)
        before = worked()
        for threads in (1, 3):
            module.limits_exponentials(threads, numbers.data_ptr(), numbers.numel(), 100000, sums.data_ptr())
            print(worked() - before)
        """
    )
    assert printed.split() == ["0", "2"]
