"""How native kernels become operators of torch: the library ``lavagna`` and what every adapter needs.

An adapter (cpu.py of an operator) defines its operators here: one forward and one backward, with shapes for
torch.compile (fake kernels) and the formula that joins the two. The backward operator has no formula of its own:
differentiating twice raises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from threading import local
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor

from .. import native
from ..errors import BackendError

__all__ = [
    "RUNS",
    "address",
    "alike",
    "boundaries",
    "calling",
    "contiguous",
    "define",
    "heard",
    "kernel",
    "listen",
    "nothing",
    "observed",
    "rows",
    "untouched",
    "whole",
]

#: who is told of a kernel: it gets the function and its arguments, and calls it
Listener = Callable[..., Any]

#: operator -> what executes it on CPU tensors
RUNS: dict[Any, Callable[..., Any]] = {}

#: numbers that fill several large pages
_MANY = 1 << 21

_LIBRARY = torch.library.Library("lavagna", "DEF")


def define(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    save: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Define torch.ops.lavagna.NAME and return a function that calls it.

    Args:
        schema: name, arguments and results as torch.library has them.
        run: executes it on CPU tensors.
        fake: makes results of the right shapes, without values.
        backward: (ctx, *gradients of the results) -> gradients of the arguments; None for an operator that cannot be
            differentiated: asking for its gradient raises.
        save: (ctx, inputs, output), keeps what `backward` needs.
    """
    name = schema[: schema.index("(")]
    if "!" in schema:
        run = _overwriting(run, schema.count("!"))
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"lavagna::{name}", fake, lib=_LIBRARY)

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise BackendError(f"lavagna::{name} has no derivative; impl='torch' can be differentiated more than once")

    operator = getattr(torch.ops.lavagna, name).default
    RUNS[operator] = run
    if "!" not in schema:
        formula = _differentiable(operator, backward or refuse, save)
    else:  # torch takes no formula for an operator that writes on its arguments
        formula = _undifferentiable(operator)
    _LIBRARY.impl(name, formula, "Autograd", with_keyset=True)

    def call(*arguments: Any) -> Any:
        if calling.direct:
            return run(*arguments)
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or not _unobserved(arguments):
            return operator(*arguments)
        try:
            return run(*arguments)
        except RuntimeError:
            if any(isinstance(a, Tensor) and is_legacy_batchedtensor(a) for a in arguments):
                return operator(*arguments)  # gradients in batches: it has no memory that a kernel could read
            raise

    return call


def _overwriting(run: Callable[..., Any], states: int) -> Callable[..., Any]:
    """`run`, which writes on its first arguments: torch is told, so that it refuses gradients of what was there."""

    def told(*arguments: Any) -> Any:
        result = run(*arguments)
        torch.autograd.graph.increment_version([t for t in arguments[:states] if t is not None])
        return result

    return told


def _undifferentiable(operator: Callable[..., Any]) -> Callable[..., Any]:
    def run(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            raise BackendError(f"{operator} overwrites its state: expected inputs that do not require gradients")
        return _below_autograd(operator, keys, arguments)

    return run


def _below_autograd(operator: Any, keys: Any, arguments: tuple[Any, ...]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)


def _differentiable(
    operator: Callable[..., Any], backward: Callable[..., Any], save: Callable[..., None] | None
) -> Callable[..., Any]:
    """What the operator does where autograd records: as torch.library.register_autograd has it, in half the time.

    The latter looks up each argument's default in the schema, each time, which takes as long as a small kernel.
    """

    class Formula(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
            results = _below_autograd(operator, keys, arguments)
            if save is not None:
                save(ctx, arguments, results)
            return results

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return None, *backward(ctx, *gradients)

    formula: Callable[..., Any] = Formula.apply

    def run(keys: Any, *arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            return formula(keys, *arguments)
        return _below_autograd(operator, keys, arguments)

    return run


class _Thread(local):
    """What holds for calls of one thread."""

    #: who calls kernels
    listener: Listener | None = None
    #: operators go to their kernels without a look: who calls them knows that gradients are not recorded, that nobody
    #: observes, and that their arguments are plain
    direct = False


calling = _Thread()


_PLAIN = frozenset({Tensor, torch.nn.Parameter, type(None), bool, int, float})


def _unobserved(arguments: tuple[Any, ...]) -> bool:
    """Whether torch would hand this call to its kernel and do nothing else: its way there takes longer than a step.

    No mode, transform, trace or profile wants to see it, and no argument is a tensor of another kind, or one whose
    memory holds the negative of its numbers.
    """
    if not _PLAIN.issuperset(map(type, arguments)) or observed():
        return False
    return not any(argument.is_neg() for argument in arguments if isinstance(argument, Tensor))


def observed() -> bool:
    """Whether somebody wants to see operators being called."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._get_tracing_state() is not None
        or torch._C._autograd._profiler_enabled()
    )


def listen(listener: Listener | None) -> Listener | None:
    """Let kernels of this thread be called by `listener`, or by nobody else; returns who did so before."""
    before = calling.listener
    calling.listener = listener
    return before


def heard(function: Callable[..., Any]) -> Callable[..., Any]:
    """The native function, or what calls it for who listens."""
    listener = calling.listener
    return function if listener is None else partial(listener, function)


def kernel(name: str, dtype: torch.dtype) -> Callable[..., Any]:
    """The native function of this name for a dtype.

    Where torch is told that products in float32 may be made of bfloat16 numbers, and the kernel and the processor have
    such products, it is the function that has them.
    """
    function, mixed = _functions.get((name, dtype)) or _find(name, dtype)
    # What torch.set_float32_matmul_precision("medium") sets for the CPU; the getter of that name raises where a program
    # has used torch.backends instead.
    if mixed is not None and _precision("mkldnn", "matmul") == "bf16":
        function = mixed
    return heard(function)


_precision = torch._C._get_fp32_precision_getter


def _find(name: str, dtype: torch.dtype) -> _Functions:
    module, own = native.module(), f"{name}_{str(dtype).removeprefix('torch.')}"
    mixed = getattr(module, f"{own}_of_bfloat16", None) if module.bfloat16_products() else None
    return _functions.setdefault((name, dtype), (getattr(module, own), mixed))


_Functions = tuple[Callable[..., Any], Callable[..., Any] | None]

#: those that were asked for, and with them those with products of bfloat16 numbers
_functions: dict[tuple[str, torch.dtype], _Functions] = {}


def address(tensor: Tensor | None) -> int:
    """Where its data begins; 0 for what is absent."""
    return 0 if tensor is None else tensor.data_ptr()


def contiguous(tensor: Tensor | None) -> Any:
    """The tensor, or a copy, as kernels take what has no time; None for what is absent."""
    return None if tensor is None else tensor.contiguous()


def rows(x: Tensor) -> tuple[Tensor, int]:
    """x [B, T, ...] as B·T rows of contiguous numbers, and how many numbers apart they begin.

    A view whose tokens are evenly spaced (a part of a wider projection) stays as it is; others are copied.
    """
    width = x.shape[2:].numel()
    if x.is_contiguous():
        return x, width
    stride = x.stride(1) if x.shape[1] > 1 else (x.stride(0) if x.shape[0] > 1 else width)
    even = x.shape[0] == 1 or x.shape[1] == 1 or x.stride(0) == x.shape[1] * stride
    if even and stride >= width and _contiguous_inside(x.shape[2:], x.stride()[2:]):
        return x, stride
    return x.contiguous(), width


def _contiguous_inside(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def alike(x: Tensor) -> Tensor:
    """A contiguous tensor of the same shape and dtype, without values: half the time of ``x.new_empty(x.shape)``."""
    return torch.empty_like(x) if x.is_contiguous() else torch.empty_like(x, memory_format=torch.contiguous_format)


def nothing(x: Tensor) -> Any:
    """For a result that is not there, a new tensor of x's dtype without numbers; None where nobody wants a tensor.

    Torch does: its operators return tensors. It takes a third of the time of an empty one by its shape.
    """
    if calling.direct:
        return None
    if type(x) in _PLAIN and x.is_cpu:
        return torch.empty_like(_NOTHING[x.dtype])
    return x.new_empty(0)


_NOTHING = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)}


def whole(step: str, *states: Tensor | None) -> None:
    """Refuse a state that a step cannot overwrite.

    Raises:
        BackendError: a state is not contiguous.
    """
    for state in states:
        if state is not None and not state.is_contiguous():
            raise BackendError(f"{step} writes on a contiguous state, got strides {state.stride()}")


def untouched(*tensors: Tensor | None) -> None:
    """Say that these tensors are fresh memory about to be filled: what is big gets large pages.

    A fault for every 4 KB costs a kernel a quarter of its time where outputs are bigger than what the allocator
    keeps at hand.
    """
    for tensor in tensors:
        if tensor is not None and tensor.numel() > _MANY:
            native.module().expect_pages(tensor.data_ptr(), tensor.nbytes)


def boundaries(bounds: list[int] | None) -> Tensor | None:
    """Boundaries of packed sequences as kernels read them."""
    return None if bounds is None else torch.tensor(bounds, dtype=torch.int64, device="cpu")
