"""A step of a model as a list of kernels with fixed addresses, written down once and played again for each token.

A step of generation asks for the same kernels each time, and Python takes longer to find out than small kernels take.
A recording keeps what a call did below all of its Python: the native kernels with the numbers they were handed, and
torch's operators with their tensors. Views and allocations are gone; every tensor of the call stays where it was, and
is overwritten by the next.

What Python itself decided is played as it was decided then. So a call is played only where it has nothing to decide
(:func:`fixed`), it reads no number of a tensor into Python while it is recorded, and one more call has given the same
bits as its recording (:meth:`Recording.proven`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .. import native
from ..errors import BackendError
from . import library
from .library import address
from .overwriting import overwriting
from .tree import leaves, map_tensors

__all__ = ["Recording", "fixed"]

#: (input, state) -> (output, next state)
Step = Callable[[Tensor, Any], tuple[Tensor, Any]]

_aten = torch.ops.aten

#: operators whose result has the values of their argument
_COPIES = (_aten._to_copy.default, _aten.clone.default, _aten.contiguous.default)

#: operators of two tensors that have a kernel, with the same bits, and the formats that it has
_NATIVE = {_aten.add.Tensor: "add_", _aten.mul.Tensor: "multiply_"}
_FORMATS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_CONVERSIONS = {(torch.bfloat16, torch.float32): "widen", (torch.float32, torch.bfloat16): "narrow"}

#: operators that leave their memory as it is
_EMPTY = (
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
)

#: operators whose results, or the shapes of them, depend on numbers that Python or the allocator must see
_UNKNOWN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)


def fixed(state: Any) -> bool:
    """Whether a state is made of tensors alone, in tuples: nothing of it is decided in Python."""
    if isinstance(state, tuple):
        return all(map(fixed, state))
    return state is None or type(state) is Tensor


class Recording:
    """A call written down.

    Args:
        step: (x, state) -> (y, next state), without anything that is kept elsewhere.
        x: its input; played again, the recording reads what is in this tensor then.
        state: contiguous tensors in tuples, which this recording overwrites with those of the next state.

    Attributes:
        x, y: input and output of each call.
        state: before a call and after it.

    Raises:
        BackendError: something in the call cannot be played again.
    """

    def __init__(self, step: Step, x: Tensor, state: Any) -> None:
        self.x, self.state = x, state
        self._step = step
        listener = _Listener()
        with listener, overwriting():
            self.y, after = step(x, state)
            self._keep(after, listener)
        self._calls = listener.calls
        self._alive = listener.alive

    def _keep(self, after: Any, listener: _Listener) -> None:
        """Overwrite the state by what comes after it, as part of the call."""
        before, after = leaves(self.state), leaves(after)
        if len(before) != len(after):
            raise BackendError("a step that changes what its state consists of cannot be played again")
        pairs = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
        held = {old.untyped_storage().data_ptr(): old for old in before}
        for old, new in pairs:
            if old.shape != new.shape or old.dtype != new.dtype:
                raise BackendError("a step whose state changes its shape cannot be played again")
            if held.get(new.untyped_storage().data_ptr(), old) is not old:
                raise BackendError("a step whose states change places cannot be played again")
            old.copy_(new)

    def __call__(self) -> Tensor:
        """Play it: y from x, and the state after it in place of the one before."""
        for call in self._calls:
            call()
        return self.y

    def proven(self, x: Tensor) -> bool:
        """Go on by x, once played and once computed anew; whether both gave the same bits."""
        before = map_tensors(torch.clone, self.state)
        y, after = self._step(x, before)
        if x is not self.x:
            self.x.copy_(x)
        played = [self(), *leaves(self.state)]
        return all(map(_same_bits, played, [y, *leaves(after)]))


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class _Listener(TorchDispatchMode):
    """Writes down what runs while it listens."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here, and what keeps the compiler away takes a second to import

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []
        self.alive: list[Any] = []  # memory whose addresses kernels were handed, whoever held it
        self._program: Any = None  # the last one
        self._end = -1  # the number of calls when it began: it goes on while there are no others
        self._outer: list[Any] = []  # it listens inside itself too

    def __enter__(self) -> _Listener:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._outer.append(library.listen(self._native))
        return self

    def __exit__(self, *error: Any) -> None:
        library.listen(self._outer.pop())
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _native(self, function: Callable[..., Any], *numbers: Any) -> None:
        """Call a kernel, and add it to the program that those just before it are in."""
        if self._end != len(self.calls):
            self._program = native.module().Program()
            self._add(self._program.run)
            self._end = len(self.calls)
        self._program.record()
        try:
            function(*numbers)
        finally:
            native.module().stop_recording()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        run = library.RUNS.get(func)
        if run is not None:
            with self:
                result = run(*args, **kwargs)
            self._hold(args, result)
            return result
        if any(tag in func.tags for tag in _UNKNOWN):
            raise BackendError(f"a step that asks for {func} cannot be played again")
        result = func(*args, **kwargs)
        self._hold(args, result)
        if not all(isinstance(r, Tensor) for r in _each(result)):
            raise BackendError(f"a step that asks for {func} cannot be played again")
        if func._schema.is_mutable:
            self._moved(args[0], args[1]) if func is _aten.copy_.default else self._add(partial(func, *args, **kwargs))
        elif func not in _EMPTY and not _views(args, result):
            if func in _COPIES:
                self._moved(result, args[0])
            elif func in _NATIVE and _alike(result, args, kwargs):
                name = _NATIVE[func] + _FORMATS[result.dtype]
                self._native(getattr(native.module(), name), result.numel(), *map(address, (*args, result)))
            else:
                self._add(_again(func, args, kwargs, result))
        return result

    def _hold(self, args: Any, result: Any) -> None:
        tensors = [t for t in (*args, *_each(result)) if isinstance(t, Tensor)]
        self.alive += [t.untyped_storage() for t in tensors if not t.is_meta]

    def _add(self, call: Callable[[], Any]) -> None:
        self.calls.append(call)

    def _moved(self, to: Tensor, source: Tensor) -> None:
        """Values of one tensor in another, perhaps in another format."""
        whole = to.is_contiguous() and source.is_contiguous() and to.shape == source.shape
        whole = whole and not (source.is_conj() or source.is_neg())  # what the memory holds is what it stands for
        if whole and (source.dtype, to.dtype) in _CONVERSIONS:
            function = getattr(native.module(), _CONVERSIONS[source.dtype, to.dtype])
            self._native(function, to.numel(), address(source), address(to))
        elif whole and to.dtype == source.dtype:
            self._native(native.module().copy, to.nbytes, address(source), address(to))
        else:
            self._add(partial(_aten.copy_.default, to, source))


def _each(result: Any) -> list[Any]:
    """The results of an operator that has one or several."""
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _alike(result: Tensor, args: Any, kwargs: Any) -> bool:
    """Whether two tensors of the same kind as the result are all there is, each whole."""
    return (
        len(args) == 2
        and not kwargs
        and result.dtype in _FORMATS
        and all(
            type(t) is Tensor and t.shape == result.shape and t.dtype == result.dtype and t.is_contiguous()
            for t in (*args, result)
        )
    )


def _again(func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> Callable[[], Any]:
    """What gives `result` new values."""
    results = _each(result)
    writing = _writing(func) if len(results) == 1 else None
    if writing is not None:
        return partial(writing, *args, **kwargs, out=result)

    def call() -> None:
        fresh = func(*args, **kwargs)
        for old, new in zip(results, _each(fresh), strict=True):
            old.copy_(new)

    return call


def _views(args: Any, result: Any) -> bool:
    """Whether all results lie in memory of the arguments, as far as they have any: what is declared says little."""
    given = {t.untyped_storage().data_ptr() for t in args if isinstance(t, Tensor)}
    results = [t for t in _each(result) if t.numel() and not t.is_meta]
    return all(t.untyped_storage().data_ptr() in given for t in results)


@cache
def _writing(func: Any) -> Any:
    """The overload of an operator with the same arguments that writes its result into ``out``; None without."""
    packet = func.overloadpacket
    wanted = [(a.name, str(a.type)) for a in func._schema.arguments]
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = [(a.name, str(a.type)) for a in overload._schema.arguments]
        if arguments == [*wanted, ("out", "Tensor")]:
            return overload
    return None
