"""Calls like an earlier one, which need no second look.

What validation, the choice of a row and the widening of dtypes look at are shapes, dtypes, devices and plain
options: never values, never strides. So what they made of a call is kept under these facts, as a plan: which
argument goes where, and to which function. A call with the same facts goes there at once. A model that generates asks
some fifty times a token, each time with the same few facts.

No plan is made of a call in which some tensor did not reach the function as it came (boundaries, masks, a state made of
zeros where none was given), of one with an argument that is neither a tensor nor plain, or while autograd records.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, signature
from operator import attrgetter, itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from .constants import widened
from .library import calling

__all__ = ["Plan", "Plans", "look", "make_plan"]

#: other values with the same facts -> the result
Plan = Callable[[tuple[Any, ...]], Any]

_TENSORS = (Tensor, nn.Parameter)
_PLAIN = (type(None), bool, int, float, str)

#: who may want to see operators being called, but for transforms of functions: within those nothing is remembered
_modes, _traced = torch._C._len_torch_dispatch_stack, torch._C._get_tracing_state
_profiled = torch._C._autograd._profiler_enabled

look = attrgetter("shape", "dtype", "device")


class Plans:
    """The plans of an operator's calls with arguments of the same kinds.

    Args:
        kinds: the types of the values, first those by place, then those by name, and the names. The types too: True
            and 1 are equal, and not the same to every check.
    """

    __slots__ = ("plain", "plans", "tensors", "usable")

    def __init__(self, kinds: tuple[Any, ...]) -> None:
        types = [kind for kind in kinds if isinstance(kind, type)]
        tensors = [place for place, kind in enumerate(types) if kind in _TENSORS]
        plain = [place for place, kind in enumerate(types) if kind in _PLAIN]
        #: whether shapes, dtypes, devices and plain options decide alone (with one tensor alone there is no state)
        self.usable = len(tensors) > 1 and len(tensors) + len(plain) == len(types)
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.tensors: Callable[..., Any] = itemgetter(*tensors) if tensors else tuple
        self.plain: Callable[..., Any] = itemgetter(*plain) if plain else lambda values: None


def make_plan(
    values: tuple[Any, ...],
    function: Callable[..., tuple[Tensor, Any]],
    before: dict[str, Any],
    after: dict[str, Any],
    dtype: torch.dtype,
    keeps: bool,
    result: Callable[[Tensor, Any], Any],
) -> Plan | None:
    """The plan of a call that was carried out; None where none can be made.

    Args:
        values: the arguments of the call.
        function: what ran.
        before: its arguments as validation left them, by name.
        after: its arguments.
        dtype: of the output.
        keeps: the final state was asked for.
        result: joins output and state.
    """
    place = {id(value): i for i, value in enumerate(values) if isinstance(value, Tensor)}
    if len(place) < sum(isinstance(value, Tensor) for value in values):
        return None  # one tensor twice: which of the two went where cannot be told
    tensors = {name: value for name, value in before.items() if isinstance(value, Tensor)}
    constants = {name: value for name, value in before.items() if name not in tensors}
    if {id(tensor) for tensor in tensors.values()} != set(place) or not all(map(_is_plain, constants.values())):
        return None
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return None  # elsewhere the device sets the pace, and has an autocast of its own
    casts = tuple((name, after[name].dtype) for name in tensors if after[name].dtype != before[name].dtype)
    kept = tuple((place[id(before[name])], wide) for name, wide in casts if type(before[name]) is nn.Parameter)
    fresh = tuple((place[id(before[name])], wide) for name, wide in casts if type(before[name]) is not nn.Parameter)

    # What the function takes by place comes from the values and, behind them, the constants; to hand it over by name
    # would take twice as long.
    parameters = signature(function).parameters.values()
    ordered = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    ordered = ordered if len(ordered) > 1 else []
    numbers = {name: place[id(tensor)] for name, tensor in tensors.items()}
    numbers |= {name: len(values) + i for i, name in enumerate(constants)}
    extra = tuple(constants.values())
    by_place: Callable[..., Any] = itemgetter(*map(numbers.get, ordered)) if ordered else lambda values: ()
    by_name = {name: value for name, value in constants.items() if name not in ordered}
    named = tuple((name, numbers[name]) for name in tensors if name not in ordered)

    def plan(values: tuple[Any, ...]) -> Any:
        if casts:
            wider = list(values)
            for place, wide in kept:
                wider[place] = widened(wider[place], wide)
            for place, wide in fresh:
                wider[place] = wider[place].to(wide)
            values = tuple(wider)
        given = {name: values[place] for name, place in named}
        calling.direct = not (_modes() or _traced() is not None or _profiled())
        try:
            output, state = function(*by_place(values + extra), **given, **by_name)
        finally:
            calling.direct = False
        if output.dtype != dtype:
            output = output.to(dtype)
        return result(output, state if keeps else None)

    return plan


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or (type(value) is tuple and all(map(_is_plain, value)))
