"""Kernels in a process as it really is: exceptions, threads that outlive the interpreter, workers, forks."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support import PRELUDE, prints, run_python

LOADER = """
import sys
from torch.utils.data import DataLoader

def compute(batch):
    return call(batch[0], gradients=False)[0]

if __name__ == "__main__":
    expected = [call(op, gradients=False)[0] for op in OPS]  # in several threads, before a fork
    loader = DataLoader(OPS, batch_size=1, num_workers=2, multiprocessing_context=sys.argv[1], collate_fn=compute)
    for _ in range(2):
        for got, same in zip(loader, expected, strict=True):
            assert torch.allclose(got, same, atol=1e-5)
    print("done")
"""


def test_exceptions_in_the_middle_leave_nothing_behind() -> None:
    printed = prints(
        """
        class Refused(Exception):
            pass

        def refuse(gradient):
            raise Refused

        for op in OPS:
            before = call(op)
            spec = load_spec(op)
            inputs = spec.make(spec.cases[0], torch.Generator().manual_seed(0), torch.float32)
            tensors = {n: t.requires_grad_() for n, t in inputs.tensors.items() if t is not None}
            output = spec.function(**tensors, **inputs.options, state=inputs.state, impl="cpu").output
            next(iter(tensors.values())).register_hook(refuse)
            try:
                output.sum().backward()
            except Refused:
                pass
            else:
                raise SystemExit(f"{op}: the hook did not raise")
            try:
                spec.function(**{n: t[..., :1] for n, t in tensors.items()}, impl="cpu", nonsense=1)
            except TypeError:
                pass
            else:
                raise SystemExit(f"{op}: an unknown argument was taken")
            assert all(torch.equal(a, b) for a, b in zip(before, call(op), strict=True)), op
        print("done")
        """
    )
    assert printed == "done\n"


def test_the_interpreter_ends_while_threads_run_kernels() -> None:
    """Threads that Python may leave behind; torch's own calls would abort here, so the kernels are called alone."""
    printed = prints(
        """
        import threading
        module, numbers, sums = native.module(), torch.zeros(4096), torch.zeros(64)
        started = threading.Event()

        def forever():
            while True:
                module.limits_exponentials(2, numbers.data_ptr(), numbers.numel(), 2, sums.data_ptr())
                started.set()

        for _ in range(2):
            threading.Thread(target=forever, daemon=True).start()
        started.wait()
        print("done", flush=True)
        """
    )
    assert printed == "done\n"


def test_the_interpreter_waits_for_threads_that_call_operators() -> None:
    printed = prints(
        """
        import threading

        def several():
            for op in OPS * 3:
                call(op)
            print("done", flush=True)

        for _ in range(2):
            threading.Thread(target=several).start()
        """
    )
    assert printed == "done\ndone\n"


def test_threads_of_python_call_operators_at_once() -> None:
    printed = prints(
        """
        from concurrent.futures import ThreadPoolExecutor
        expected = {op: call(op) for op in OPS}
        with ThreadPoolExecutor(4) as pool:
            for op, got in zip(OPS * 8, pool.map(call, OPS * 8)):
                assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, expected[op], strict=True)), op
        print("done")
        """
    )
    assert printed == "done\n"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader_call_operators(method: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # spawned workers import it again
    program.write_text(PRELUDE + LOADER)
    done = run_python([str(program), method])
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_forked_child_after_parallel_work_in_the_parent() -> None:
    printed = prints(
        """
        import os
        expected = {op: call(op) for op in OPS}
        inputs = {op: prepare(op) for op in OPS}  # for which torch would use its threads
        a = torch.randn(400, 400)
        a @ a  # torch's own threads are running
        child = os.fork()
        if child == 0:
            same = all(
                torch.allclose(x, y, atol=1e-5)
                for op in OPS
                for x, y in zip(expected[op], call(op, inputs=inputs[op]), strict=True)
            )
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert all(torch.equal(x, y) for op in OPS for x, y in zip(expected[op], call(op), strict=True))
        print("done")
        """
    )
    assert printed == "done\n"


def test_a_forked_child_that_is_the_first_to_call_a_kernel() -> None:
    """The parent used torch's threads and no kernel of ours: they are gone in the child all the same."""
    printed = prints(
        """
        import os
        a = torch.randn(400, 400)
        a @ a
        child = os.fork()
        if child == 0:
            module, numbers, sums = native.module(), torch.zeros(4096), torch.zeros(64)
            module.limits_exponentials(2, numbers.data_ptr(), numbers.numel(), 2, sums.data_ptr())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        print("done")
        """,
    )
    assert printed == "done\n"
