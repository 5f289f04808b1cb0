"""What every mixer is: the contract, and the parts of it that are the same for all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import ConfigError, InputError, ShapeError, StateError
from ..ops.packing import Padding, check_cu_seqlens
from ..ops.tree import named_leaves, nbytes
from ..shapes import Dims

__all__ = ["Mixer", "state_dtype"]


def state_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a recurrent state beside activations of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


_ONLY_TENSORS = frozenset({Tensor})

_look = attrgetter("shape", "dtype", "device")

#: names of a state's tensors, and whether each is complex
Kinds = list[tuple[str, bool]]


def _kinds(parts: Iterable[tuple[str, Tensor]]) -> Kinds:
    return [(name, tensor.is_complex()) for name, tensor in parts]


def _described(kinds: Kinds) -> str:
    return ", ".join(f"{name} (complex)" if is_complex else name for name, is_complex in kinds) or "nothing"


def _first_parameter(module: nn.Module) -> Tensor:
    """The first of module.parameters(), which takes as long to begin as a step takes a small operator.

    Where there are none (a quantised module holds its weights in another way) the first buffer.
    """
    for parameter in module._parameters.values():
        if parameter is not None:
            return parameter
    return next(chain(module.parameters(), module.buffers()))


class Mixer(nn.Module):
    """A layer that mixes tokens: [B, T, D] -> [B, T, D], reading the past through a state.

    A subclass gives :meth:`mix`, :meth:`init_state` and ``state_class``, and :meth:`state_bytes` if its state grows.
    It never sees a padded token: a batch with a mask is packed before :meth:`mix` and unpacked after it.

    Constructors take ``width`` and, as keyword-only arguments with defaults and type hints, their options:
    the registry reads them from there.
    """

    #: the class of its states; None where there is no state
    state_class: ClassVar[type | None] = None

    #: its memory after a token, "S_t = " left out, S (or h) being the memory before it; empty for an MLP
    recurrence: ClassVar[str] = ""

    #: what yesterday's memory goes through, in words; empty for an MLP
    survives: ClassVar[str] = ""

    #: what the paper puts after this mixer in a block: a key of MLPS, or None for no MLP
    published_mlp: ClassVar[str | None] = "swiglu"

    #: the option that sets how many channels out_proj reads, where it may be any number: it can fit a model to a
    #: budget of parameters; None where there is none
    inner_option: ClassVar[str | None] = None

    def __init__(self, width: int) -> None:
        super().__init__()
        if width < 1:
            raise ConfigError(f"{type(self).__name__}: width must be at least 1, got {width}")
        self.width = width
        self._steps: set[tuple[Any, ...]] = set()  # the facts of steps that were found to be right

    # --- for subclasses -------------------------------------------------------------------------------------

    @abstractmethod
    def mix(self, x: Tensor, state: Any, cu_seqlens: Tensor | None) -> tuple[Tensor, Any]:
        """Mix real tokens: x [B, T, D], or [1, T, D] with boundaries [M+1]; state of B (or M) rows, or None."""

    @abstractmethod
    def init_state(
        self, batch_size: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Any:
        """The state before the first token, the same as ``state=None``.

        Args:
            batch_size: B, or the number M of packed sequences.
            dtype: dtype of the activations; default that of the parameters. Recurrent states are float32
                (float64 for float64) whatever it is; only a key-value cache has this dtype.
            device: default that of the parameters.

        Returns:
            A tree of tensors with the batch first (see lavagna.ops.tree).
        """

    def state_bytes(self, context: int, batch_size: int = 1, dtype: torch.dtype = torch.float32) -> int:
        """Bytes of the state of `batch_size` rows after `context` tokens, activations being of `dtype`."""
        return nbytes(self.init_state(batch_size, dtype=dtype, device="meta"))

    # --- for users ------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """Mix a batch, going on from `state`.

        Args:
            x: [B, T, D] of the parameters' dtype and device; under autocast of any floating dtype.
            state: what an earlier call returned, or None at the start of a sequence.
            token_mask: bool [B, T], True = a real token. Padding, wherever it stands, changes neither the
                outputs at real tokens nor the state; outputs at padding are zero.
            cu_seqlens: int [M+1], boundaries of sequences packed into batch 1, each with its own state.

        Returns:
            y [B, T, D], and the state after the last real token of each row.

        Raises:
            ShapeError, InputError, StateError: an argument does not fit.
        """
        if token_mask is not None:
            return self._mix_padded(x, state, token_mask, cu_seqlens)
        facts = self._facts(x, state) if cu_seqlens is None else None
        if facts is None or facts not in self._steps:
            self._check(x, state, cu_seqlens)
            if facts is not None:
                self._steps.add(facts)
        return self.mix(x, state, cu_seqlens)

    def _mix_padded(self, x: Tensor, state: Any, token_mask: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Any]:
        name = type(self).__name__
        if cu_seqlens is not None:
            raise InputError(f"{name}: give token_mask or cu_seqlens, not both")
        dims = self._check(x, state, None)
        dims.bind("token_mask", token_mask, "B T")
        if token_mask.dtype != torch.bool:
            raise ShapeError(f"{name}: token_mask must be bool with True for real tokens, got {token_mask.dtype}")
        padding = Padding.of(token_mask)
        y, state = self.mix(padding.pack(x), state, padding.cu_seqlens)
        return padding.unpack(y), state

    def _check(self, x: Tensor, state: Any, cu_seqlens: Tensor | None) -> Dims:
        name = type(self).__name__
        dims = Dims(name, D=self.width)
        dims.bind("x", x, "B T D")
        if not x.is_floating_point():
            raise ShapeError(f"{name}: x must have a floating dtype, got {x.dtype}")
        self._check_dtype_and_device(x)
        rows = dims["B"]
        if cu_seqlens is not None:
            rows = len(check_cu_seqlens(name, cu_seqlens, dims["B"], dims["T"])) - 1
        if state is not None and (self.state_class is None or not isinstance(state, self.state_class)):
            expected = "None" if self.state_class is None else f"a {self.state_class.__name__}"
            raise StateError(f"{name}: state must be {expected}, got a {type(state).__name__}")
        if state is not None:
            parts = list(named_leaves(state))
            for _, leaf in parts:
                if leaf.shape[0] != rows:
                    raise StateError(f"{name}: state must have {rows} rows, got {leaf.shape[0]}")
            if _kinds(parts) != self._state_kinds:
                raise StateError(
                    f"{name}: with this mixer's options a state must hold {_described(self._state_kinds)}, "
                    f"got one with {_described(_kinds(parts))}"
                )
        return dims

    def _facts(self, x: Any, state: Any) -> tuple[Any, ...] | None:
        """All that :meth:`_check` looks at in a step of one token; None for anything else, and for rare states."""
        parts = () if state is None else state
        if type(x) is not Tensor or x.ndim != 3 or x.shape[1] != 1 or not isinstance(parts, tuple):
            return None
        parameter = _first_parameter(self)
        if (
            x.dtype != parameter.dtype
            or not _ONLY_TENSORS.issuperset(map(type, parts))
            or torch.compiler.is_compiling()
        ):
            return None
        return (type(state), parameter.device, *map(_look, (x, *parts)))

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Mix one token of each row: x [B, D] and a state -> y [B, D] and the next state."""
        y, state = self.forward(x[:, None], state)
        return y[:, 0], state

    @cached_property
    def _state_kinds(self) -> Kinds:
        """What the states of this mixer hold: options decide it, and those do not change."""
        return _kinds(named_leaves(self.init_state(1, device="meta")))

    def _check_dtype_and_device(self, x: Tensor) -> None:
        parameter = _first_parameter(self)
        if x.device != parameter.device:
            raise ShapeError(
                f"{type(self).__name__}: x must be on {parameter.device} as the parameters, got {x.device}"
            )
        kind = x.device.type
        if x.dtype == parameter.dtype or (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return
        # Decays and norms are often kept in float32 beside projections in half precision.
        dtypes = {p.dtype for p in self.parameters()}
        if x.dtype not in dtypes:
            raise ShapeError(
                f"{type(self).__name__}: x must have the parameters' dtype {' or '.join(sorted(map(str, dtypes)))}, "
                f"got {x.dtype}"
            )

    # --- shared by subclasses -------------------------------------------------------------------------------

    def _like(self, dtype: torch.dtype | None, device: torch.device | str | None) -> tuple[torch.dtype, torch.device]:
        """Fill in the dtype and device of the parameters where none was given."""
        parameter = _first_parameter(self)
        return dtype or parameter.dtype, torch.device(device) if device is not None else parameter.device

    def _zeros(self, *shape: int, dtype: torch.dtype | None, device: torch.device | str | None) -> Tensor:
        """A recurrent state before the first token; dtype and device as in :meth:`init_state`."""
        dtype, device = self._like(dtype, device)
        return torch.zeros(shape, dtype=state_dtype(dtype), device=device)
