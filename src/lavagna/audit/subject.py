"""What is audited, as every check sees it: copies of a model in several precisions, inputs, and safe calls."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import InputError
from .adapters import Adapter
from .finding import Example, ModelError, one_line
from .tracing import AttentionCall, trace_attention
from .trees import tensors
from .widening import widened

__all__ = ["Answer", "Subject"]

#: what float64 cannot explain is no rounding
FLOAT64_TOLERANCE = 1e-9
#: the same where a model computes in float32 only
FLOAT32_TOLERANCE = 1e-4
#: rounding in an output that shows float64 throughout
EXACT = 1e-11
#: rounding that float32 may leave
MOST = 1e-5
#: how far a difference may go beyond the rounding that was measured
NOISE_FACTOR = 200.0
#: how much each parameter is shaken, as a share of its root mean square
SHAKEN = 0.1
#: tokens of the sequence on which attention is watched; no usual size of a head, so that a square is one of tokens
TRACED = 13

#: casts real parameters and buffers, and leaves complex ones as they are
_CAST: dict[torch.dtype, Callable[[nn.Module], nn.Module]] = {
    torch.float64: nn.Module.double,
    torch.float32: nn.Module.float,
    torch.bfloat16: nn.Module.bfloat16,
}


class Answer(NamedTuple):
    """Output [B, T, ...] and the state behind it."""

    output: Tensor
    state: Any


class Subject:
    """A model in one precision.

    Args:
        adapter: calls a copy that is the subject's own.
        dtype: of its parameters.
        origin: the adapter of the untouched model, for copies in other precisions.
        widen: whatever the model computes in float32 is computed in float64.
    """

    def __init__(self, adapter: Adapter, dtype: torch.dtype, origin: Adapter, widen: bool = False) -> None:
        self.adapter = adapter
        self.dtype = dtype
        self.origin = origin
        self.widen = widen
        self.module: nn.Module | None = adapter.model if isinstance(adapter.model, nn.Module) else None
        #: longest sequence that checks may use
        self.max_tokens = adapter.max_tokens
        #: parameters that can have gradients, by name
        self.parameters: dict[str, nn.Parameter] = {}
        if self.module is not None:
            named = self.module.named_parameters()
            self.parameters = {n: p for n, p in named if p.is_floating_point() or p.is_complex()}
        for parameter in self.parameters.values():
            parameter.requires_grad_(True)

    @classmethod
    def of(cls, origin: Adapter) -> Subject:
        """A copy in float64, every parameter shaken, so that no zero hides what it multiplies.

        It is in float32 where the model cannot compute in float64, and not shaken where it would not stay finite.
        """
        subject = cls._in_float64(origin) or cls.copied(origin, torch.float32)
        shaken = cls.copied(origin, subject.dtype, subject.widen)
        shaken._shake()
        finite = False
        for tokens in (67, 3):
            with suppress(ModelError):
                finite = bool(torch.isfinite(shaken.run(shaken.make(2, shaken.longest(tokens))).output).all())
                break
        return shaken if finite else subject

    @classmethod
    def _in_float64(cls, origin: Adapter) -> Subject | None:
        """A copy that computes in float64, its float32 parts widened if it has any; None where it cannot."""
        found: Subject | None = None
        for widen in (False, True):
            subject = cls.copied(origin, torch.float64, widen)
            try:
                subject.run(subject.make(2, subject.longest(3)))
                if found is None or subject.rounding < found.rounding / 10:
                    found = subject
            except ModelError:
                continue
            if found.rounding < EXACT:
                break
        return found

    @classmethod
    def copied(cls, origin: Adapter, dtype: torch.dtype, widen: bool = False) -> Subject:
        """A copy of the untouched model in a precision.

        Raises:
            InputError: the module cannot be copied.
        """
        model = origin.model
        if isinstance(model, nn.Module):
            model = _CAST[dtype](copy_module(model))
        return cls(origin.on(model), dtype, origin, widen)

    def _shake(self) -> None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters.values():
                if parameter.numel():
                    size = float(parameter.abs().square().mean().sqrt()) or 1.0
                    noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.add_((SHAKEN * size * noise).to(parameter.dtype))

    # --- inputs -----------------------------------------------------------------------------------------------

    @cached_property
    def _pool(self) -> Tensor:
        """The tokens that inputs are drawn from."""
        vocabulary = self.adapter.vocabulary or 0
        allowed = [token for token in range(min(vocabulary, 4096)) if token not in self.adapter.avoid]
        return torch.tensor(allowed or [0])

    def make(self, batch: int, tokens: int, seed: int = 0) -> Tensor:
        """Random input: int [B, T] or [B, T, D]."""
        generator = torch.Generator().manual_seed(1000 * seed + tokens)
        if self.adapter.width is None:
            return self._pool[torch.randint(0, len(self._pool), (batch, tokens), generator=generator)]
        return torch.randn(batch, tokens, self.adapter.width, generator=generator, dtype=torch.float64).to(self.dtype)

    def other(self, x: Tensor) -> Tensor:
        """An input that differs from x in every token."""
        if self.adapter.width is None:
            place = torch.searchsorted(self._pool, x)
            return self._pool[(place + 1 + len(self._pool) // 3) % len(self._pool)]
        return 0.5 - x.flip(0, 2) if x.shape[-1] > 1 else 0.5 - x

    def constant(self, batch: int, tokens: int) -> Tensor:
        """The same token everywhere."""
        x = self.make(1, 1)
        return x.expand(batch, tokens, *x.shape[2:]).contiguous()

    def longest(self, tokens: int) -> int:
        """`tokens`, or as many as the model can read."""
        return tokens if self.max_tokens is None else min(tokens, self.max_tokens)

    def end_at(self, tokens: int) -> None:
        """Use no longer sequences from now on, here and in other copies."""
        self.max_tokens = self.origin.max_tokens = tokens

    def lengths(self, *tokens: int) -> list[int]:
        """Those lengths that the model can read."""
        return [n for n in tokens if self.max_tokens is None or n <= self.max_tokens]

    # --- calls ------------------------------------------------------------------------------------------------

    def run(
        self,
        x: Tensor,
        state: Any = None,
        *,
        mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        keep: bool = False,
        grad: bool = False,
        copied: bool = True,
    ) -> Answer:
        """Call the model.

        Args:
            x, state, mask, cu_seqlens, keep: as the adapter has them.
            grad: record for gradients.
            copied: give a copy of the output, which no later call can change; never where gradients are recorded.

        Raises:
            ModelError: the model raised, or its output is not [B, T, ...].
        """
        try:
            with torch.set_grad_enabled(grad), widened() if self.widen else nullcontext():
                output, after = self.adapter.call(x, state, mask, cu_seqlens, keep or state is not None)
        except Exception as error:
            raise ModelError(f"raised {one_line(error)}", _example(x, state)) from error
        if not isinstance(output, Tensor) or output.shape[:2] != x.shape[:2]:
            got = f"an output of {list(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise ModelError(f"returned {got} for {list(x.shape[:2])} tokens", _example(x, state))
        return Answer(output.clone() if copied and not grad else output, after)

    def backward(self, loss: Tensor) -> None:
        """Put the gradients of a loss into the parameters, in place of what was there.

        Raises:
            ModelError: the model's backward pass raised.
        """
        for parameter in self.parameters.values():
            parameter.grad = None
        self._backward(loss.backward)

    def gradient(self, loss: Tensor, x: Tensor) -> Tensor | None:
        """The gradient of a loss with respect to x, None if it does not depend on x; raises as :meth:`backward`."""
        return self._backward(lambda: torch.autograd.grad(loss, x, allow_unused=True))[0]

    def _backward(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except Exception as error:
            raise ModelError(f"raised in backward {one_line(error)}") from error

    def vectors(self, x: Tensor) -> tuple[Answer, Tensor | None]:
        """Run x for gradients; beside the answer, the vectors [B, T, D] that the model read, ready for gradients.

        They are x itself, or what an embedding made of tokens; None where no embedding was seen.
        """
        if self.adapter.vocabulary is None:
            x = x.detach().clone().requires_grad_(True)
            return self.run(x, grad=True), x
        seen: list[Tensor] = []
        with self.embedding(seen.append, x.shape):
            answer = self.run(x, grad=True)
        return answer, seen[0] if len(seen) == 1 and seen[0].requires_grad else None

    @contextmanager
    def embedding(self, watch: Callable[[Tensor], Tensor | None], shape: torch.Size) -> Iterator[None]:
        """Let `watch` see, and replace if it returns a tensor, what embeddings make of tokens of `shape`."""

        def hook(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
            if args and isinstance(args[0], Tensor) and args[0].shape == shape:
                return watch(output)
            return None

        modules = [] if self.module is None else list(self.module.modules())
        handles = [
            m.register_forward_hook(hook)
            for m in modules
            if isinstance(m, nn.Embedding) and m.num_embeddings == self.adapter.vocabulary
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def read(self, x: Tensor, state: Any = None, **arguments: Any) -> Answer:
        """Run with the state wanted."""
        return self.run(x, state, keep=True, **arguments)

    def select(self, state: Any, index: list[int]) -> Any:
        """The rows `index` of a state.

        Raises:
            ModelError: the state has no such rows.
        """
        try:
            return self.adapter.select(state, torch.tensor(index))
        except Exception as error:
            raise ModelError(f"has a state that cannot be reordered: {one_line(error)}") from error

    @property
    def takes_state(self) -> bool:
        return self.adapter.takes_state

    # --- what was measured of it -------------------------------------------------------------------------------

    @cached_property
    def rounding(self) -> float:
        """How much rounding there is in an output, as a share of the largest number in it.

        An output in exact arithmetic is a smooth function of its parameters: its second difference over a tiny step
        is rounding alone. It shows where a part of the model computes in less than float64.
        """
        # Where the most is read from, since there rounding has met most; less if that does not run.
        for tokens in (67, 13, 3):
            with suppress(ModelError):
                return self._rounding(self.make(1, self.longest(tokens)))
        return 0.0

    def _rounding(self, x: Tensor) -> float:
        step = 1e-7 if self.dtype == torch.float64 else 1e-4
        moved: list[Tensor] = [x] if self.adapter.vocabulary is None else list(self.parameters.values())
        kept = [t.detach().clone() for t in moved]
        generator = torch.Generator().manual_seed(1)
        noise = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.dtype) for t in moved]
        answers = []
        for sign in (-1, 0, 1):
            _set(moved, [old * (1 + sign * step * by) for old, by in zip(kept, noise, strict=True)])
            try:
                answers.append(self.run(x).output.double())
            finally:
                _set(moved, kept)
        low, middle, high = answers
        size = float(middle.abs().max()) or 1.0
        rounding = float((low - 2 * middle + high).abs().max()) / size
        # More is no rounding: the model is not smooth, or draws random numbers.
        return rounding if rounding < MOST else 0.0

    @cached_property
    def tolerance(self) -> float:
        """How far two answers that should be one may differ, as a share of the largest number in them."""
        floor = FLOAT64_TOLERANCE if self.dtype == torch.float64 else FLOAT32_TOLERANCE
        return max(floor, NOISE_FACTOR * self.rounding)

    @cached_property
    def attention(self) -> list[AttentionCall]:
        """Every softmax over tokens in one pass over TRACED tokens."""
        return self.watch(self.make(2, self.longest(TRACED)))

    def watch(self, x: Tensor) -> list[AttentionCall]:
        """Every softmax over tokens in a pass over x."""
        with trace_attention(x) as calls:
            self.run(x, grad=True)
        return calls

    def state_tensors(self, state: Any) -> list[Tensor]:
        """All tensors of a state."""
        return tensors(self.adapter.contents(state))


def _set(tensors: list[Tensor], values: list[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def _example(x: Tensor, state: Any) -> Example:
    return Example(x.shape[1], x.shape[0], "one call" if state is None else "one call, reading on from a state")


def copy_module(module: nn.Module) -> nn.Module:
    """A copy on the CPU, in evaluation mode, without gradients.

    Raises:
        InputError: it cannot be copied.
    """
    try:
        copied = copy.deepcopy(module)
    except Exception as error:
        raise InputError(f"expected a module that can be copied, but {one_line(error)}") from error
    copied.zero_grad(set_to_none=True)
    return copied.cpu().eval()
