"""Watch attention from outside: every softmax over tokens, and what becomes of it, under a torch dispatch mode.

A mode sees the operators that a model calls, whoever wrote it. Each tensor is followed from operator to operator as
far as three questions need it: by which number queries and keys were scaled, which product made the logits, and what
was done to the weights before they met the values.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["AttentionCall", "Product", "Use", "trace_attention"]

#: logits below this are those of hidden keys
HIDDEN = -1e8


class Product(NamedTuple):
    """Logits as coefficient · q kᵀ, with what was added to them later.

    Fields:
        q, k: [..., T, K] and [..., T, K], as they were multiplied.
        coefficient: by which the product was multiplied, before and after, since q and k were made.
    """

    q: Tensor
    k: Tensor
    coefficient: float


class Use(NamedTuple):
    """Weights as they met the values.

    Fields:
        weights: [..., T, T].
        axis: −1 or −2, the one that is summed over.
    """

    weights: Tensor
    axis: int


@dataclass(eq=False)
class AttentionCall:
    """One softmax over tokens.

    Attributes:
        logits: [..., T, T], what the softmax read; None in a fused operator.
        weights: [..., T, T], what it returned; None in a fused operator, and where exponentials are divided by their
            sum by hand. A column more (an attention sink, to which weight is lost on purpose) is left out.
        axis: −1 or −2, along which the softmax went.
        product: where the logits came from, if it was seen.
        bias: what a fused operator adds to its logits.
        uses: of the weights.
    """

    logits: Tensor | None
    weights: Tensor | None
    axis: int
    product: Product | None
    bias: Tensor | None = None
    uses: list[Use] = field(default_factory=list)

    @property
    def fused(self) -> bool:
        """Whether torch's own scaled_dot_product_attention did all of it."""
        return self.logits is None

    @property
    def head_dim(self) -> int | None:
        """K, if the product was seen."""
        return None if self.product is None else self.product.q.shape[-1]


@dataclass(frozen=True)
class _Known:
    """What is known of a tensor that descends from a product, a norm, an embedding or the input.

    gain: the product of all numbers it was multiplied by since.
    product: it is logits.
    call: it descends from the weights of this softmax.
    """

    gain: float = 1.0
    product: Product | None = None
    call: AttentionCall | None = None


_NOTHING = _Known()
_ANEW = _Known()

_MADE_ANEW = {
    "mm",
    "addmm",
    "convolution",
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "embedding",
}


@contextmanager
def trace_attention(x: Tensor) -> Iterator[list[AttentionCall]]:
    """Collect every softmax over T × T that runs inside the block, x [B, T, ...] being the model's input."""
    mode = _Watcher(x)
    with mode:
        yield mode.calls


class _Watcher(TorchDispatchMode):
    def __init__(self, x: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tokens = x.shape[1]
        self.calls: list[AttentionCall] = []
        self.known: dict[tuple[Any, ...], _Known] = {}
        self.alive: list[Tensor] = [x]  # so that no address is used twice
        self._set(x, _ANEW)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import torch's compiler, which takes seconds, so that it leaves this class alone.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        # Watching must not be what stops a model.
        with contextlib.suppress(RuntimeError, LookupError, TypeError, ValueError):
            self._watch(func, args, kwargs, result)
        return result

    def _watch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        name = func.overloadpacket.__name__
        out = next((t for t in _flat(result)), None)
        if out is None:
            return
        self.alive.append(out)
        if "scaled_dot_product" in name:
            self._fused(func, args, kwargs)
            return
        if name in ("_softmax", "_safe_softmax"):  # the second one inside of fused attention, where it is not fused
            self._softmax(args[0], args[1], out)
        elif name == "exp" and self._of(args[0]).product is not None:
            self._exponential(args[0], out)
        elif name in ("bmm", "baddbmm"):
            self._product(args[-2:], out, float(kwargs.get("alpha", 1.0)))
        elif name in _MADE_ANEW:
            self._set(out, _ANEW)
        else:
            self._elementwise(name, (*args, *kwargs.values()), result)

    # --- operators ----------------------------------------------------------------------------------------------

    def _fused(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k = given["query"], given["key"]
        if q.shape[-2] != self.tokens or k.shape[-2] != self.tokens:
            return
        if q.ndim == 4 and k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # as the operator does where keys are grouped
        scale = given.get("scale")
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        coefficient = scale * self._of(q).gain * self._of(given["key"]).gain
        product = Product(_copy(q), _copy(k), coefficient)
        bias = given.get("attn_mask", given.get("attn_bias"))
        self.calls.append(AttentionCall(None, None, -1, product, None if bias is None else _copy(bias)))

    def _softmax(self, logits: Tensor, axis: int, weights: Tensor) -> None:
        if weights.ndim < 2 or weights.shape[-2] != self.tokens or weights.shape[-1] - self.tokens not in (0, 1):
            return
        axis = axis - weights.ndim if axis >= 0 else axis
        if axis not in (-1, -2):
            return
        seen = [_copy(t[..., : self.tokens]) for t in (logits, weights)]
        call = AttentionCall(seen[0], seen[1], axis, self._of(logits).product)
        self.calls.append(call)
        self._set(weights, _Known(call=call))

    def _exponential(self, logits: Tensor, out: Tensor) -> None:
        """A softmax by hand."""
        call = AttentionCall(_copy(logits), None, -1, self._of(logits).product)
        self.calls.append(call)
        self._set(out, _Known(call=call))

    def _product(self, pair: tuple[Any, ...], out: Tensor, alpha: float) -> None:
        a, b = pair
        for tensor, axis in ((a, -1), (b, -2)):
            call = self._of(tensor).call
            if call is not None and tensor.shape[-2:] == (self.tokens, self.tokens):
                call.uses.append(Use(_copy(tensor), axis))
        if out.shape[-2:] == (self.tokens, self.tokens):
            coefficient = alpha * self._of(a).gain * self._of(b).gain
            self._set(out, _Known(product=Product(_copy(a), _copy(b.transpose(-1, -2)), coefficient)))
        else:
            self._set(out, _ANEW)

    def _elementwise(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """What an operator that makes nothing new hands on: views, sums, masks and numbers."""
        inputs = list(_flat(args))
        known = next((k for k in map(self._of, inputs) if k is not _NOTHING), _NOTHING)
        factor = _factor(name, args)
        if factor is not None and known is not _NOTHING:
            known = replace(
                known,
                gain=known.gain * factor,
                product=known.product and known.product._replace(coefficient=known.product.coefficient * factor),
            )
        if known is not _NOTHING:
            for tensor in _flat(result):
                self.alive.append(tensor)
                self._set(tensor, known)

    # --- memory -------------------------------------------------------------------------------------------------

    def _of(self, tensor: Any) -> _Known:
        return self.known.get(_place(tensor), _NOTHING) if isinstance(tensor, Tensor) else _NOTHING

    def _set(self, tensor: Tensor, known: _Known) -> None:
        self.known[_place(tensor)] = known


def _place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies: autograd may hand the same one on under another identity."""
    storage = tensor.untyped_storage().data_ptr()
    return storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _flat(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _flat(part)


def _number(value: Any) -> float | None:
    """A Python number, or a tensor of one element."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return float(value)
    return None


_FACTORS: dict[str, Callable[[float], float]] = {
    "mul": lambda number: number,
    "mul_": lambda number: number,
    "div": lambda number: 1 / number,
    "div_": lambda number: 1 / number,
}


def _factor(name: str, args: tuple[Any, ...]) -> float | None:
    """The number that an operator multiplies a tensor by, None if it is none."""
    if name not in _FACTORS or len(args) < 2:
        return None
    numbers = [_number(arg) for arg in args[:2]]
    if name.startswith("mul") and isinstance(args[0], Tensor) and args[0].numel() == 1:
        numbers.reverse()
    number = numbers[1]
    if number is None or number == 0 or not math.isfinite(number):
        return None
    return _FACTORS[name](number)
