"""Calls of operators, by us and by others, as sides to time. Inputs come from the specs that the tests run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from lavagna import native
from lavagna.errors import BackendError
from lavagna.ops.spec import Inputs, OpSpec, load_spec

from .measure import Make, Side

__all__ = [
    "NATIVE",
    "PORTABLE",
    "Executor",
    "Workload",
    "bfloat16_products",
    "executed_by",
    "forward",
    "forward_backward",
    "state_updates",
]

Tensors = Mapping[str, Tensor]


class Workload(NamedTuple):
    """One call of an operator.

    Fields:
        op: its name.
        case: name of one of the spec's cases for benchmarks.
        sizes: replace the case's own.
    """

    op: str
    case: str
    sizes: Mapping[str, int] = {}

    @property
    def spec(self) -> OpSpec:
        return load_spec(self.op)

    @property
    def all_sizes(self) -> dict[str, int]:
        (case,) = (case for case in self.spec.bench if case.name == self.case)
        return {**case.sizes, **self.sizes}

    def resized(self, **sizes: int) -> Workload:
        return self._replace(sizes={**self.sizes, **sizes})

    def draw(self) -> Inputs:
        """Float32 inputs without an initial state."""
        (case,) = (case for case in self.spec.bench if case.name == self.case)
        inputs = self.spec.make(case._replace(sizes=self.all_sizes), torch.Generator().manual_seed(0), torch.float32)
        return inputs._replace(state=None)


class Executor(NamedTuple):
    """Who computes what an operator computes.

    Fields:
        arrange: the inputs of the operator -> tensors by name, in the layout that the executor wants.
        compute: (spec, those tensors, the operator's options) -> output, [B, T, ...] or in the executor's layout.
    """

    arrange: Callable[[Inputs], dict[str, Tensor]]
    compute: Callable[[OpSpec, Tensors, Mapping[str, object]], Tensor]


def as_they_are(inputs: Inputs) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in inputs.tensors.items() if tensor is not None}


def executed_by(impl: str) -> Executor:
    """The public operator on one of its implementations."""
    return Executor(as_they_are, lambda spec, tensors, options: spec.function(**tensors, **options, impl=impl).output)


NATIVE = executed_by("cpu")
PORTABLE = executed_by("torch")


def forward(workload: Workload, executor: Executor = NATIVE, work: float = 1.0) -> Make:
    """The call without gradients."""

    def make() -> Side:
        inputs = workload.draw()
        spec, tensors = workload.spec, executor.arrange(inputs)

        def run() -> Tensor:
            with torch.no_grad():
                return executor.compute(spec, tensors, inputs.options)

        return Side(run, work)

    return make


def forward_backward(workload: Workload, executor: Executor = NATIVE, work: float = 1.0) -> Make:
    """The call, and the gradients of all its floating inputs from one of the output."""

    def make() -> Side:
        inputs = workload.draw()
        spec = workload.spec
        leaves = {
            name: t.requires_grad_(t.is_floating_point() and name not in spec.not_differentiable)
            for name, t in executor.arrange(inputs).items()
        }
        wanted = [t for t in leaves.values() if t.requires_grad]
        with torch.no_grad():
            upstream = torch.randn_like(executor.compute(spec, leaves, inputs.options))

        def run() -> tuple[Tensor, ...]:
            return torch.autograd.grad(executor.compute(spec, leaves, inputs.options), wanted, upstream)

        return Side(run, work)

    return make


def bfloat16_products(make: Make) -> Make:
    """The same side while torch is told that products in float32 may be made of bfloat16 numbers."""

    def made() -> Side:
        if not native.bfloat16_products():
            raise BackendError("the processor has no products of bfloat16 numbers (AVX512-BF16) that kernels could use")
        side = make()

        def run() -> object:
            torch.set_float32_matmul_precision("medium")
            try:
                return side.run()
            finally:
                torch.set_float32_matmul_precision("highest")

        return side._replace(run=run)

    return made


def state_updates(workload: Workload) -> float:
    """B·T·HV·K·V (or B·T·D·N): elements of the state, over all tokens."""
    sizes = workload.all_sizes
    state = (sizes["D"] * sizes["N"]) if "N" in sizes else sizes["HV"] * sizes["K"] * sizes["V"]
    return float(sizes["B"] * sizes["T"] * state)
