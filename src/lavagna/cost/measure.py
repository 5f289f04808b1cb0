"""The cost of a part of a model, read off a run of the part itself on the meta device.

There tensors have shapes alone, no numbers and no memory. So a new mixer is planned without a line for it here, and
no formula can drift from the code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop

from ..mixers import Mixer
from ..models.block import Block
from ..ops.tree import leaves
from ..training import loss
from .extrapolate import Measured, extrapolate

__all__ = ["Branch", "Cost", "Head"]

_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_attend_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _attention(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop(q, k, v)


def _attention_backward(_: Any, q: Any, k: Any, v: Any, *__: Any, **___: Any) -> int:
    return 2 * sdpa_flop(q, k, v)


#: torch's counter knows the fused attention of other devices, not the CPU's. Its products are those of the unfused
#: one: two forward, four backward, over all pairs, hidden ones included.
FUSED_FLOPS = {_attend: _attention, _attend_backward: _attention_backward}


class Cost(NamedTuple):
    """The cost of training a part on B rows of T tokens.

    Fields:
        forward: FLOPs of the matrix products of the forward pass.
        training: those of the backward pass included.
        held: bytes that are kept from the forward pass for the backward one, the state behind the last token
            included; parameters are not.
        steps: the longest chain of tensor operations from the input to the output.
        most: the most bytes that both passes take, beside the input and the parameters.
    """

    forward: int
    training: int
    held: int
    steps: int
    most: int

    @classmethod
    def of(cls, measured: Measured) -> Cost:
        return cls(*measured.counts, *measured.extremes)


class Branch:
    """A residual branch of a block on the meta device, in the dtype that is planned.

    Args:
        block: whose branch.
        norm, layer: the block's mixer or MLP, and the norm before it.
        batch: B.
    """

    def __init__(self, block: Block, norm: nn.Module, layer: Mixer, batch: int) -> None:
        self.block, self.norm, self.layer, self.batch = block, norm, layer, batch
        self.dtype = next(block.parameters()).dtype
        self._trained = cache(lambda tokens: _train(self._input(tokens), self._run, norm, layer))
        self._stepped = cache(self._step)

    def train(self, tokens: int, start: int) -> Cost:
        """Read [B, T] forward and backward; from `start` on each further token costs the same."""
        return Cost.of(extrapolate(self._trained, tokens, start=start))

    def step(self, context: int) -> int:
        """FLOPs of one token of each row behind a context."""
        return extrapolate(self._stepped, context).counts[0]

    def _step(self, context: int) -> Measured:
        with torch.no_grad(), _FusedAttention():
            state = self._run(self._input(context))[1] if context else None
            with FlopCounterMode(display=False, custom_mapping=FUSED_FLOPS) as counter:
                self._run(self._input(1), state)
        return Measured((counter.get_total_flops(),))

    def _input(self, tokens: int) -> Tensor:
        return torch.empty(self.batch, tokens, self.layer.width, dtype=self.dtype, device="meta")

    def _run(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        return self.block.branch(self.norm, self.layer, x, state, None)


class Head:
    """The final norm, the head and the loss of training, on the meta device.

    Args:
        norm: the final norm.
        linear: the head, in the dtype that is planned.
    """

    def __init__(self, norm: nn.Module, linear: nn.Linear) -> None:
        self.norm, self.linear = norm, linear
        #: tokens whose logits are made at once
        self.period = max(loss.LOGITS_AT_ONCE // linear.out_features, 1)
        self._trained = cache(lambda tokens: _train(self._input(tokens), self._run, norm, linear))

    def train(self, tokens: int) -> Cost:
        """Read N = `tokens` tokens forward and backward."""
        if tokens <= self.period:
            return Cost.of(self._trained(tokens))
        return Cost.of(extrapolate(self._trained, tokens, start=self.period, period=self.period))

    def step(self, rows: int) -> int:
        """FLOPs of one token of each row."""
        return 2 * rows * self.linear.weight.numel()

    def _input(self, tokens: int) -> Tensor:
        return torch.empty(1, tokens, self.linear.in_features, dtype=self.linear.weight.dtype, device="meta")

    def _run(self, x: Tensor) -> tuple[Tensor, Any]:
        targets = torch.empty(x.shape[:2], dtype=torch.int64, device="meta")
        weights = torch.empty(x.shape[:2], dtype=torch.float32, device="meta")
        return loss.next_token_loss(self.linear, self.norm(x), targets, weights), None


def _train(x: Tensor, run: Callable[[Tensor], tuple[Tensor, Any]], *modules: nn.Module) -> Measured:
    """Run a part on x forward and backward."""
    x.requires_grad_()
    parameters = [p for module in modules for p in module.parameters()]
    held = _Held(parameters)
    with FlopCounterMode(display=False, custom_mapping=FUSED_FLOPS) as counter, _FusedAttention(), _Memory(x) as memory:
        with held.saving():
            y, state = run(x)
        held.add(*leaves(state))
        forward, steps = counter.get_total_flops(), memory.steps_to(y)
        y.backward(torch.empty_like(y))
    for parameter in parameters:
        parameter.grad = None
    return Measured((forward, counter.get_total_flops(), held.bytes), (steps, memory.most))


class _Held:
    """Bytes of what is kept for a backward pass: each piece of memory once, parameters left out."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = {p.untyped_storage()._cdata for p in parameters}
        self.sizes: dict[int, int] = {}

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context in which all that autograd saves is added."""

        def pack(tensor: Tensor) -> Tensor:
            self.add(tensor)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)

    def add(self, *tensors: Tensor) -> None:
        """Add tensors that live on to the end of the forward pass."""
        for storage in _storages(tensors):
            if storage._cdata not in self.parameters:
                self.sizes[storage._cdata] = storage.nbytes()

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


class _FusedAttention(TorchFunctionMode):
    """Attention by the fused kernel, as on every real device; the meta device alone would hold all weights."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        q, k, v = args
        options = dict(kwargs or {})
        return _attend(q, k, v, 0.0, options.pop("is_causal"), **options)[0]


class _Memory(TorchDispatchMode):
    """Watches each piece of memory that operations make: how much of it there is, how long the chain behind it is.

    Args:
        start: the tensor at which chains of operations begin; views are no operations.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self.made: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.start = start
        self.chain = {start.untyped_storage()._cdata: 0}

    def __torch_dispatch__(self, func: Any, types: Sequence[type], args: tuple = (), kwargs: dict | None = None) -> Any:
        read = {storage._cdata for storage in _storages((args, kwargs))}
        chains = [self.chain[key] for key in read & self.chain.keys()]
        out = func(*args, **(kwargs or {}))
        for storage in _storages(out):
            key, size = storage._cdata, storage.nbytes()
            if key not in read and key not in self.made:
                self.now += size
                self.most = max(self.most, self.now)
                self.made[key] = weakref.ref(storage, partial(self._free, key, size))
            if chains and (key not in read or func._schema.is_mutable):
                self.chain[key] = 1 + max(chains)
        return out

    def _free(self, key: int, size: int, _: Any) -> None:
        self.now -= size
        del self.made[key]
        self.chain.pop(key, None)

    def steps_to(self, tensor: Tensor) -> int:
        return self.chain[tensor.untyped_storage()._cdata]


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
