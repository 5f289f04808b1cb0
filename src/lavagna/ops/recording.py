"""A step of a model as a list of kernels with fixed addresses, written down once and played again for each token.

A step of generation asks for the same kernels each time, and Python takes longer to find out than small kernels take.
A recording keeps what a call did below all of its Python: the native kernels with the numbers they were handed, and
torch's operators with their tensors. Views and allocations are gone; every tensor of the call stays where it was, and
is overwritten by the next.

What Python itself decided is played as it was decided then. So a call is recorded only where its state has nothing to
decide (:func:`fixed`), and refused where it takes numbers out of tensors, draws random ones, or writes on what is
neither its state nor its own; and it is played only after one more call has given the same bits as its recording
(:meth:`Recording.prove`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
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

#: operators whose results, or the shapes of them, depend on numbers that Python or the allocator must see, or on chance
_UNKNOWN = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)

#: what takes numbers out of a tensor where torch's dispatcher does not see it
_TAKING = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__, Tensor.data_ptr)

#: bytes that the results of a call may take: beyond, its kernels take longer than its Python
LARGEST = 8 << 20


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
        trusted: the step is known to take no numbers out of tensors, which takes a third of the time to watch.

    Attributes:
        y: output of each call.
        state: before a call and after it.

    Raises:
        BackendError: something in the call cannot be played again. The state may then be overwritten in part.
    """

    def __init__(self, step: Step, x: Tensor, state: Any, *, trusted: bool = False) -> None:
        self.state = state
        self._x = x
        self._step = step
        listener = _Listener(leaves(state))
        with _put_back(), nullcontext() if trusted else _Numbers(), listener, overwriting():
            self.y, after = step(x, state)
            _keep(leaves(state), leaves(after), listener)
        self._calls = listener.calls
        self._alive = listener.alive

    def __call__(self, x: Tensor) -> Tensor:
        """Play it: y from x, and the state after it in place of the one before."""
        if x is not self._x:
            self._x.copy_(x)
        for call in self._calls:
            call()
        return self.y

    def prove(self, x: Tensor) -> tuple[bool, Tensor, Any]:
        """Go on by x, once played and once computed anew.

        Returns:
            Whether both gave the same bits; output and next state as computed.
        """
        before = map_tensors(torch.clone, self.state)
        y, after = self._step(x, before)
        played = [self(x), *leaves(self.state)]
        return all(map(_same_bits, played, [y, *leaves(after)])), y, after


def _keep(before: list[Tensor], after: list[Tensor], listener: _Listener) -> None:
    """Overwrite the state by what comes after it, as part of the call."""
    if len(before) != len(after):
        raise BackendError("a step that changes what its state consists of cannot be played again")
    held = {_memory(old): old for old in before}
    for old, new in zip(before, after, strict=True):
        if old is new:
            continue
        if old.shape != new.shape or old.dtype != new.dtype:
            raise BackendError("a step whose state changes its shape cannot be played again")
        if held.get(_memory(new), old) is not old:
            raise BackendError("a step whose states change places cannot be played again")
        listener.may_write(old)
        old.copy_(new)


@contextmanager
def _put_back() -> Iterator[None]:
    """Leave torch as it was, also where an interruption hits a mode between its entry and its exit."""
    modes, functions = torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()
    listener = library.listen(None)
    try:
        yield
    finally:
        library.listen(listener)
        while torch._C._len_torch_dispatch_stack() > modes:
            torch._C._pop_torch_dispatch_stack(None)
        while torch._C._len_torch_function_stack() > functions:
            torch._C._pop_torch_function_stack()


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


class _Numbers(TorchFunctionMode):
    """Refuses what takes numbers out of tensors past torch's dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _TAKING:
            raise BackendError(f"a step that takes numbers out of tensors ({func.__name__}) cannot be played again")
        return func(*args, **(kwargs or {}))


class _Listener(TorchDispatchMode):
    """Writes down what runs while it listens.

    Args:
        state: the tensors that may be written on.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what keeps the compiler away takes a second to import

    def __init__(self, state: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], Any]] = []
        self.alive: list[Any] = []  # memory whose addresses kernels were handed, whoever held it
        self._program: Any = None  # the last one
        self._end = -1  # the number of calls when it began: it goes on while there are no others
        self._own = {_memory(t) for t in state}  # memory that may be written on: the state's, and what the call made
        self._overwritten: set[int] = set()  # states that an operator has advanced, and nobody may look at any more
        self._bytes = 0  # of what the call made

    def __enter__(self) -> _Listener:
        super().__enter__()  # type: ignore[no-untyped-call]
        library.listen(self._native)
        return self

    def __exit__(self, *error: Any) -> None:
        library.listen(None)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def may_write(self, tensor: Tensor) -> None:
        """This one is overwritten at the end of the call: what it held does not matter any more."""
        self._overwritten.discard(_memory(tensor))

    def _native(self, function: Callable[..., Any], *numbers: Any) -> None:
        """Call a kernel, and add it to the program that those just before it are in."""
        if self._end != len(self.calls):
            self._program = native.module().Program()
            self._add(self._program.run)
            self._end = len(self.calls)
        self._program.add(function, *numbers)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _given(func, args, kwargs)
        self._refuse(func, given)
        run = library.RUNS.get(func)
        if run is not None:
            with torch._C.DisableTorchFunction(), self:
                result = run(*args, **kwargs)
            library.listen(self._native)
            self._overwritten |= {_memory(tensor) for tensor, written in given if written}
        else:
            result = func(*args, **kwargs)
        self._hold([tensor for tensor, _ in given], _each(result))
        if run is not None:
            return result
        if _facts(func).writes:
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

    def _refuse(self, func: Any, given: list[tuple[Tensor, bool]]) -> None:
        """Refuse what cannot be played again, before it has any effect."""
        why = None
        if _facts(func).unknown:
            why = "asks for"
        elif any(_memory(tensor) in self._overwritten for tensor, _ in given):
            why = "looks at a state that is overwritten already, in"
        elif any(written and _memory(tensor) not in self._own for tensor, written in given):
            why = "writes on what is not its own in"
        if why is not None:
            raise BackendError(f"a step that {why} {func} cannot be played again")

    def _hold(self, given: list[Tensor], results: list[Any]) -> None:
        """Keep all memory of an operator, for kernels were handed its address."""
        if not all(isinstance(result, Tensor) for result in results):
            raise BackendError("a step that asks for something else than tensors cannot be played again")
        tensors = [*given, *(t for t in results if not t.is_meta)]
        self.alive += [t.untyped_storage() for t in tensors]
        known = {*self._own, *map(_memory, given)}
        for tensor in tensors[len(given) :]:
            if _memory(tensor) not in known:
                self._own.add(_memory(tensor))
                self._bytes += tensor.untyped_storage().nbytes()
        if self._bytes > LARGEST:
            raise BackendError(f"a step that makes more than {LARGEST >> 20} MB is not kept to be played again")

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


class _Facts(NamedTuple):
    """What an operator says of itself; torch takes longer to tell than to run it.

    Fields:
        arguments: name of each, and whether it is written on.
        writes: one of them is.
        unknown: it is none that can be played again.
    """

    arguments: list[tuple[str, bool]]
    writes: bool
    unknown: bool


@cache
def _facts(func: Any) -> _Facts:
    schema = func._schema
    hides = "batch_norm" in schema.name  # what it writes
    return _Facts(
        [(a.name, a.alias_info is not None and a.alias_info.is_write) for a in schema.arguments],
        schema.is_mutable,
        hides or any(tag in func.tags for tag in _UNKNOWN),
    )


def _given(func: Any, args: Any, kwargs: dict[str, Any]) -> list[tuple[Tensor, bool]]:
    """The tensors with memory that an operator is given, and whether it writes on them."""
    found = []
    for i, (name, written) in enumerate(_facts(func).arguments):
        value = args[i] if i < len(args) else kwargs.get(name)
        if value is not None:
            found += [(t, written) for t in _each(value) if isinstance(t, Tensor) and not t.is_meta and t.numel()]
    return found


def _each(value: Any) -> list[Any]:
    """The elements of an argument or result that may be a list."""
    return list(value) if isinstance(value, (tuple, list)) else [value]


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
