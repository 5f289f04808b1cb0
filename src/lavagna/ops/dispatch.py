"""Who executes an operator, and in which order: the table each api.py holds, and the choice among its rows.

Two independent names: ``form`` is the order of evaluation (recurrent | chunk | parallel), ``impl`` is who
executes it (reference | torch | cpu | ...). "auto" picks; a named one runs or raises BackendError with every
reason why it cannot. Nothing falls back silently.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from importlib import import_module
from threading import RLock, local
from typing import Any, NamedTuple, ParamSpec

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import native
from ..errors import BackendError, InputError, ShapeError, unknown_name
from .packing import run_packed
from .repeated import Plan, Plans, look, make_plan
from .tree import leaves

__all__ = [
    "FORMS",
    "Call",
    "Result",
    "Row",
    "Table",
    "automatic",
    "automatic_is_native",
    "common_dtype",
    "device_of",
]

FORMS = ("recurrent", "chunk", "parallel")
IMPLS = ("reference", "torch", "cpu")

_DOUBLE = (torch.float64, torch.complex128)

#: calls that are remembered, of one operator with arguments of the same kinds: sequences have many lengths
_REMEMBERED = 1024

_P = ParamSpec("_P")
_automatic = "auto"


@contextmanager
def automatic(impl: str) -> Iterator[None]:
    """Inside, a call that leaves ``impl`` open runs on this one: to compare implementations of a whole model.

    It holds for all threads.

    Args:
        impl: a name of :data:`IMPLS`, or "auto".

    Raises:
        InputError: the name is unknown. A call whose operator has no such row raises BackendError, as if named there.
    """
    global _automatic
    if impl not in (*IMPLS, "auto"):
        raise InputError(unknown_name("impl", impl, (*IMPLS, "auto")))
    before, _automatic = _automatic, impl
    try:
        yield
    finally:
        _automatic = before


def automatic_is_native() -> bool:
    """Whether what is left open may run on the native kernels."""
    return _automatic in ("auto", "cpu") and native.available() and not differentiated_forward()


def differentiated_forward() -> bool:
    """Whether torch is asked for derivatives beside the values or by a transform: native operators have neither."""
    if forward_ad._current_level >= 0:
        return True
    interpreter = torch._C._functorch.peek_interpreter_stack()
    return interpreter is not None and interpreter.key() in _TRANSFORMS


# torch.compile takes what it returns for a constant: it could not follow it.
differentiated_forward._dynamo_marked_constant = True  # type: ignore[attr-defined]
_TRANSFORMS = (torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp)


class Result(NamedTuple):
    """What every operator returns: the output, and the final state if it was asked for."""

    output: Tensor
    state: Any


class Call(NamedTuple):
    """One validated call, as every implementation receives it.

    Fields:
        timed: name -> tensor [B, T, ...].
        fixed: name -> tensor without a time dimension, or None.
        options: name -> plain value.
        state: initial state (never None: zeros where none was given).
        bounds: boundaries of packed sequences, or None.
        fills: name -> value of a timed tensor at a token that changes no state (missing: 0).
    """

    timed: dict[str, Tensor]
    fixed: dict[str, Tensor | None]
    options: dict[str, Any]
    state: Any
    bounds: list[int] | None = None
    fills: Mapping[str, float] = {}

    @property
    def tokens(self) -> int:
        """T."""
        return next(iter(self.timed.values())).shape[1]

    @property
    def device(self) -> torch.device:
        return next(iter(self.timed.values())).device


class Row(NamedTuple):
    """One way to execute an operator.

    Fields:
        impl: reference | torch | cpu | ...
        form: recurrent | chunk | parallel.
        target: "module:function"; the function takes timed, fixed and options as keywords, and state=,
            and returns (output, final state).
        refuses: reasons why it cannot run this call, each a clause; from shapes, dtypes, devices and options alone
            (see .repeated).
        packs: the function takes ``bounds=`` itself; otherwise packed sequences reach it as padded groups.
        widens: the function expects float32 or float64; otherwise it takes half precision as it comes.
    """

    impl: str
    form: str
    target: str
    refuses: Callable[[Call], list[str]] = lambda call: []
    packs: bool = False
    widens: bool = True

    @property
    def function(self) -> Callable[..., tuple[Tensor, Any]]:
        return _imported(self.target)


def _imported(target: str) -> Callable[..., tuple[Tensor, Any]]:
    module, name = target.split(":")
    _import(module)
    return getattr(sys.modules[module], name)


#: modules of rows that nobody has asked for yet
_LATER: set[str] = set()

#: held while modules are imported: another thread would else find one that is half done
_IMPORTING = RLock()


def _import(module: str) -> None:
    with _IMPORTING:
        while _LATER:
            with suppress(ModuleNotFoundError):  # of a kernel that is not there: only who asks for it must hear of it
                import_module(_LATER.pop())
        if module not in sys.modules:
            import_module(module)


# torch.compile calls it and does not look inside, for it cannot follow an import. All modules come at once because it
# reads sys.modules once.
_import._dynamo_marked_constant = True  # type: ignore[attr-defined]


class _NativeRefusals:
    """What speaks against all native rows of a table, unless the table itself holds something else."""

    def __get__(self, table: Table, owner: type[Table]) -> list[str]:
        return native.refusals(table.op)


class Table:
    """The rows of one operator and the choice among them.

    Args:
        op: name of the public function.
        rows: in order of preference within a form.
        prefer: forms in order of preference for a call; "auto" tries them in this order.
    """

    native_refusals = _NativeRefusals()

    def __init__(
        self,
        op: str,
        rows: tuple[Row, ...],
        prefer: Callable[[Call], tuple[str, ...]] = lambda call: (
            FORMS if call.tokens <= 2 else ("chunk", "parallel", "recurrent")
        ),
    ) -> None:
        self.op = op
        self.rows = rows
        _LATER.update(row.target.partition(":")[0] for row in rows)
        self.prefer = prefer
        self._chosen: dict[tuple[str, str, tuple[str, ...]], tuple[Row, ...]] = {}
        self._plans: dict[tuple[Any, ...], Plans] = {}
        self._running = local()  # of each thread, the call that it is at

    def reasons(self, row: Row, call: Call | None = None) -> list[str]:
        """Every reason why `row` cannot run here (`call` None) or cannot run this call."""
        found = list(self.native_refusals) if row.impl == "cpu" else []
        if call is not None:
            if row.impl == "cpu" and call.device.type != "cpu":
                found.append(f"its tensors are on {call.device}, not on the CPU")
            if row.impl == "cpu" and differentiated_forward():
                found.append("it has derivatives for backward alone, not forward ones or those of torch.func")
            found += row.refuses(call)
        return found

    def choose(self, call: Call, form: str = "auto", impl: str = "auto") -> Row:
        """The row that executes `call`.

        Raises:
            InputError: a name that is none of the known forms or implementations.
            BackendError: no row with these names can run the call; every reason is listed.
        """
        for kind, name, known in (("form", form, FORMS), ("impl", impl, IMPLS)):
            if name not in (*known, "auto"):
                raise InputError(f"{self.op}: {unknown_name(kind, name, (*known, 'auto'))}")
        if impl == "auto":
            impl = _automatic
        order = self.prefer(call)
        named = self._named(form, impl, order)
        refused = []
        for row in named:
            reasons = self.reasons(row, call)
            if not reasons:
                return row
            refused.append((row, reasons))
        why = [f"form={row.form!r}, impl={row.impl!r}: {'; '.join(reasons)}" for row, reasons in refused]
        if not named:
            have = ", ".join(f"{r.impl}/{r.form}" for r in self.rows)
            why = [f"there is no such pair (impl/form there are: {have})"]
        raise BackendError(f"{self.op}: form={form!r} with impl={impl!r} cannot run: {' | '.join(why)}")

    def _named(self, form: str, impl: str, order: tuple[str, ...]) -> tuple[Row, ...]:
        """The rows with these names, those of the preferred forms first; worked out once, for a step asks each time."""
        key = (form, impl, order)
        if key not in self._chosen:
            named = [r for r in self.rows if form in ("auto", r.form) and impl in ("auto", r.impl)]
            if impl == "auto":
                named = [r for r in named if r.impl != "reference"]
            self._chosen[key] = tuple(
                sorted(named, key=lambda r: order.index(r.form) if r.form in order else len(order))
            )
        return self._chosen[key]

    def run(self, call: Call, *, form: str, impl: str, dtype: torch.dtype, return_state: bool) -> Result:
        """Choose a row and execute `call` with it.

        Args:
            call: validated arguments, in the dtypes that came.
            form, impl: as the user gave them.
            dtype: dtype of the output.
            return_state: hand the final state back.
        """
        row = self.choose(call, form, impl)
        timed, fixed, state = call.timed, call.fixed, call.state
        if row.widens:
            wide = _wide_dtype([*timed.values(), *fixed.values(), *leaves(state)])
            timed = {name: _widen(t, wide) for name, t in timed.items()}
            fixed = {name: t if t is None else _widen(t, wide) for name, t in fixed.items()}

        # Autocast would run the products inside in half precision: a recurrence rounds at every step.
        kind = call.device.type
        available = row.widens and torch.amp.is_autocast_available(kind)  # the meta device has no autocast
        casts = available and torch.is_autocast_enabled(kind)  # to enter it costs as much as a small product
        with torch.autocast(kind, enabled=False) if casts else nullcontext():
            if call.bounds is None or row.packs:
                extra = {"bounds": call.bounds} if row.packs else {}
                arguments = {**timed, **fixed, **call.options, "state": state, **extra}
                output, final = row.function(**arguments)
                self._learn(row, call, arguments, dtype, return_state)
            else:
                output, final = run_packed(
                    lambda group, rows: row.function(**group, **fixed, **call.options, state=rows),
                    timed,
                    call.fills,
                    state,
                    call.bounds,
                    alone=row.impl == "reference",
                )
        return Result(output.to(dtype), final if return_state else None)

    def _learn(self, row: Row, call: Call, arguments: dict[str, Any], dtype: torch.dtype, return_state: bool) -> None:
        lesson = getattr(self._running, "lesson", None)
        if lesson is not None:
            before = {**arguments, **call.timed, **call.fixed}
            lesson.plan = make_plan(lesson.values, row.function, before, arguments, dtype, return_state, Result)

    def remembers(self, function: Callable[_P, Result]) -> Callable[_P, Result]:
        """Let `function`, which ends in :meth:`run`, go to the implementation at once where an earlier call was alike.

        See .repeated for what is alike, and when it is done.
        """

        @wraps(function)
        def operator(*args: _P.args, **kwargs: _P.kwargs) -> Result:
            # Autocast concerns some implementations.
            if (
                torch.is_grad_enabled()
                or torch.is_autocast_enabled("cpu")
                or torch.compiler.is_compiling()
                or forward_ad._current_level >= 0
                or torch._C._functorch.peek_interpreter_stack() is not None
            ):
                return function(*args, **kwargs)
            values = (*args, *kwargs.values())
            kinds = (*map(type, values), *kwargs)
            known = self._plans.get(kinds)
            if known is None:
                known = self._plans[kinds] = Plans(kinds)
            if not known.usable:
                return function(*args, **kwargs)
            tensors = known.tensors(values)
            if True in map(Tensor.is_neg, tensors):
                return function(*args, **kwargs)
            key = (_automatic, known.plain(values), *map(look, tensors))
            plan = known.plans.get(key)
            if plan is not None:
                return plan(values)
            outer = getattr(self._running, "lesson", None)
            self._running.lesson = lesson = _Lesson(values)
            try:
                result = function(*args, **kwargs)
            finally:
                self._running.lesson = outer
            if lesson.plan is not None:
                if len(known.plans) >= _REMEMBERED:
                    known.plans.clear()
                known.plans[key] = lesson.plan
            return result

        return operator


class _Lesson:
    """A call at work: its values, and the plan that is made of it."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        self.values = values
        self.plan: Plan | None = None


def _wide_dtype(tensors: list[Tensor | None]) -> torch.dtype:
    double = any(t is not None and t.dtype in _DOUBLE for t in tensors)
    return torch.float64 if double else torch.float32


def _widen(tensor: Tensor, real: torch.dtype) -> Tensor:
    if tensor.dtype == real:
        return tensor
    if tensor.is_complex():
        return tensor.to(torch.complex128 if real == torch.float64 else torch.complex64)
    return tensor.to(real) if tensor.is_floating_point() else tensor


def common_dtype(caller: str, may_be_complex: Collection[str] = (), /, **tensors: Tensor | None) -> torch.dtype:
    """The dtype in which a state of these inputs is kept: float64 when any of them is, else float32.

    Args:
        caller: the operator's name, for messages.
        may_be_complex: names of the tensors that need not be real.
        tensors: name -> tensor, or None.

    Raises:
        ShapeError: an input is no tensor or of another than a floating dtype, or they are on different devices.
    """
    dtype, device = torch.float32, None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if not isinstance(tensor, Tensor):
            raise ShapeError(f"{caller}: {name} must be a tensor, got {type(tensor).__name__}")
        own = tensor.dtype
        if not (own.is_floating_point or (own.is_complex and name in may_be_complex)):
            kind = "floating or complex" if name in may_be_complex else "real floating"
            raise ShapeError(f"{caller}: {name} must have a {kind} dtype, got {own}")
        if own in _DOUBLE:
            dtype = torch.float64
        if device is None:
            device = tensor.device
        elif tensor.device != device:
            device_of(caller, **tensors)
    return dtype


def device_of(caller: str, **tensors: Tensor | None) -> torch.device:
    """The one device of these tensors.

    Raises:
        ShapeError: they are on different devices; the message names each.
    """
    devices = {name: t.device for name, t in tensors.items() if t is not None}
    if len(set(devices.values())) > 1:
        raise ShapeError(
            f"{caller}: expected all tensors on one device, got " + ", ".join(f"{n} on {d}" for n, d in devices.items())
        )
    return next(iter(devices.values()))
