"""Mixers that break one contract each, and the test of the suite that must see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from lavagna.mixers import Mixer
from lavagna.mixers.parts.precision import wide

from ..support import conformance as contracts
from ..support.contracts import LENGTHS, Subject, layouts
from ..support.subjects import seeded
from ..support.variants import WIDTH
from . import test_conformance as of_mixers


class FadingState(NamedTuple):
    """memory [B, D]."""

    memory: Tensor


class Fading(Mixer):
    """The right one: h_t = .9 h_{t−1} + W x_t + b, y_t = tanh(h_t)."""

    state_class = FadingState

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.in_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width, bias=False)

    def init_state(self, batch_size: int, *, dtype: Any = None, device: Any = None) -> FadingState:
        return FadingState(self._zeros(batch_size, self.width, dtype=dtype, device=device))

    def mix(self, x: Tensor, state: FadingState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, FadingState]:
        u = wide(self.in_proj(x))
        rows = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        h = u.new_zeros(rows, self.width) if state is None else state.memory
        if cu_seqlens is None:
            y, h = self.fade(u, h)
        else:
            parts = u.split(cu_seqlens.diff().tolist(), 1)
            results = [self.fade(part, h[m : m + 1]) for m, part in enumerate(parts)]
            y = torch.cat([u[:, :0], *(y for y, _ in results)], 1)
            h = torch.cat([h[:0], *(h for _, h in results)])
        return self.out_proj(y.tanh().to(x.dtype)), FadingState(h)

    def fade(self, u: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """u [B, T, D] and h [B, D] -> every h [B, T, D] and the last."""
        held = []
        for token in u.unbind(1):
            h = 0.9 * h + token
            held.append(h)
        return (torch.stack(held, 1) if held else u), h


class LosesTheState(Fading):
    def mix(self, x, state, cu_seqlens):
        return super().mix(x, None, cu_seqlens)


class CutsTheGradientThroughTheState(Fading):
    def fade(self, u, h):
        return super().fade(u, h.detach())


class ForgetsInSteps(Fading):
    def step(self, x, state):
        return super().step(x, FadingState(0.99 * state.memory))


class StartsFromOnes(Fading):
    def mix(self, x, state, cu_seqlens):
        rows = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        return super().mix(x, state or FadingState(wide(x.new_ones(rows, self.width))), cu_seqlens)


class MasksTheInputAlone(Fading):
    """Padding is zero before the projection; its bias is not."""

    def forward(self, x, state=None, token_mask=None, cu_seqlens=None):
        if token_mask is None:
            return super().forward(x, state, cu_seqlens=cu_seqlens)
        y, state = super().forward(x.masked_fill(~token_mask[..., None], 0), state)
        return y * token_mask[..., None], state


class LeavesOutputsAtPadding(Fading):
    def forward(self, x, state=None, token_mask=None, cu_seqlens=None):
        y, state = super().forward(x, state, token_mask, cu_seqlens)
        return (y if token_mask is None else y + ~token_mask[..., None]), state


class ReadsPadding(Fading):
    def forward(self, x, state=None, token_mask=None, cu_seqlens=None):
        y, state = super().forward(x, state, token_mask, cu_seqlens)
        return y + (0 * x.sum() if token_mask is not None else 0), state


class IgnoresBoundaries(Fading):
    def mix(self, x, state, cu_seqlens):
        _, final = super().mix(x, state, cu_seqlens)
        first = state if cu_seqlens is None or state is None else FadingState(state.memory[:1])
        return super().mix(x, first, None)[0], final


class SwapsPackedStates(Fading):
    def mix(self, x, state, cu_seqlens):
        y, final = super().mix(x, state, cu_seqlens)
        return y, final if cu_seqlens is None else FadingState(final.memory.flip(0))


class MixesRows(Fading):
    def fade(self, u, h):
        return super().fade(u + 1e-9 * u.sum(0), h)


class SpreadsNaN(Fading):
    def fade(self, u, h):
        return super().fade(u + 0 * u.sum(0), h)


class SeesTheFuture(Fading):
    def fade(self, u, h):
        return super().fade(u + 1e-9 * u.sum(1, keepdim=True), h)


class DividesByTheNorm(Fading):
    def mix(self, x, state, cu_seqlens):
        return super().mix(x / x.square().sum(-1, keepdim=True).sqrt(), state, cu_seqlens)


class NeedsAToken(Fading):
    def fade(self, u, h):
        return super().fade(u, u[:, -1])


class Grows(Fading):
    """Keeps all that it has read, as more and more columns of its state."""

    def fade(self, u, h):
        y, last = super().fade(u, h[..., : self.width])
        return y, torch.cat([last, h[..., self.width :], u.flatten(1)], 1)


class SaysToo(Fading):
    def state_bytes(self, context, batch_size=1, dtype=torch.float32):
        return super().state_bytes(context, batch_size, dtype) + 8


class KeepsAView(Fading):
    def fade(self, u, h):
        y, last = super().fade(u, h)
        return y, (y[:, -1] if y.shape[1] else last)


class KeepsStateOnTheModule(Fading):
    last: Tensor | None = None

    def fade(self, u, h):
        y, last = super().fade(u, h if self.last is None or self.last.shape != h.shape else h + 1e-9 * self.last)
        self.last = last.detach()
        return y, last


class WritesOnTheState(Fading):
    def mix(self, x, state, cu_seqlens):
        y, final = super().mix(x, state, cu_seqlens)
        if state is not None and cu_seqlens is None:
            state.memory.detach().copy_(final.memory.detach())
        return y, final


class WritesOnItsInput(Fading):
    def mix(self, x, state, cu_seqlens):
        answer = super().mix(x, state, cu_seqlens)
        x.detach().mul_(2)
        return answer


class PutsTheBatchSecond(Fading):
    """Its state has the batch in another place, so that forking and reordering miss it."""

    def fade(self, u, h):
        half = h.shape[1] // 2
        return super().fade(u, torch.cat([h[:, :half], h.flip(0)[:, half:]], 1))


class TakesAnyRows(Fading):
    state_class = object

    def forward(self, x, state=None, token_mask=None, cu_seqlens=None):
        rows = x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        if state is not None:
            state = FadingState(state.memory[:rows])
        return super().forward(x, state, token_mask, cu_seqlens)


class TakesAnyKeyword(Fading):
    def forward(self, x, state=None, token_mask=None, cu_seqlens=None, **more):
        return super().forward(x, state, token_mask, cu_seqlens)


class WidensTheOutput(Fading):
    def mix(self, x, state, cu_seqlens):
        y, state = super().mix(x, state, cu_seqlens)
        return wide(y), state


class RoundsTheState(Fading):
    def mix(self, x, state, cu_seqlens):
        y, state = super().mix(x, state, cu_seqlens)
        return y, FadingState(state.memory.to(x.dtype))


class IsFarOffInHalfPrecision(Fading):
    def mix(self, x, state, cu_seqlens):
        y, state = super().mix(x, state, cu_seqlens)
        return (y if x.dtype in (torch.float64, torch.float32) else 1.1 * y), state


class HasAnIdleParameter(Fading):
    def __init__(self, width):
        super().__init__(width)
        self.idle = nn.Parameter(torch.ones(width))


class DropsInTraining(Fading):
    def mix(self, x, state, cu_seqlens):
        return super().mix(nn.functional.dropout(x, 0.5, self.training), state, cu_seqlens)


class CannotBeCopied(Fading):
    def __init__(self, width):
        super().__init__(width)
        self.activation = lambda x: x


class DetachesAWeight(Fading):
    def mix(self, x, state, cu_seqlens):
        y, state = super().mix(x, state, cu_seqlens)
        return y + 0.1 * (x.detach() @ self.out_proj.weight.detach()), state


def padding(layout: str) -> Callable[[Subject], None]:
    return lambda subject: contracts.check_padding(subject, layouts(LENGTHS)[layout])


#: a mixer, and the tests each of which must see what is wrong with it
BREAKS: dict[type[Fading], tuple[Callable[..., None], ...]] = {
    LosesTheState: (
        contracts.test_pieces_of_any_length_equal_the_whole,
        contracts.test_no_token_changes_no_state,
        padding("right, then right"),
    ),
    CutsTheGradientThroughTheState: (contracts.test_pieces_of_any_length_equal_the_whole,),
    ForgetsInSteps: (contracts.test_one_token_at_a_time_equals_the_whole,),
    StartsFromOnes: (contracts.test_no_state_is_the_first_state_is_a_state_of_zeros,),
    MasksTheInputAlone: (
        padding("left"),
        padding("right"),
        padding("everywhere"),
        contracts.test_any_mask_and_any_packing_equal_each_row_alone,
        contracts.test_no_token_changes_no_state,
        contracts.test_a_batch_of_padding_alone,
    ),
    LeavesOutputsAtPadding: (padding("left"), contracts.test_no_token_changes_no_state),
    ReadsPadding: (padding("left"), contracts.test_a_batch_of_padding_alone),
    IgnoresBoundaries: (
        contracts.test_packed_sequences_equal_each_alone,
        contracts.test_any_mask_and_any_packing_equal_each_row_alone,
    ),
    SwapsPackedStates: (contracts.test_packed_sequences_equal_each_alone, padding("right")),
    MixesRows: (contracts.test_rows_of_a_batch_do_not_meet,),
    SpreadsNaN: (contracts.test_a_broken_row_breaks_no_other,),
    SeesTheFuture: (
        contracts.test_the_past_has_no_gradient_from_the_future,
        contracts.test_changing_tokens_changes_nothing_before_them,
    ),
    DividesByTheNorm: (contracts.test_outputs_states_and_gradients_are_finite,),
    NeedsAToken: (contracts.test_empty_batches, contracts.test_no_token_changes_no_state),
    Grows: (contracts.test_the_state_does_not_grow, contracts.test_bytes_of_the_state_are_as_announced),
    SaysToo: (contracts.test_bytes_of_the_state_are_as_announced,),
    KeepsAView: (contracts.test_the_state_keeps_no_other_memory_alive,),
    KeepsStateOnTheModule: (
        contracts.test_reading_leaves_no_trace_on_the_module,
        contracts.test_two_sequences_read_in_turn_do_not_meet,
    ),
    WritesOnTheState: (contracts.test_nothing_handed_in_is_written_on,),
    WritesOnItsInput: (contracts.test_nothing_handed_in_is_written_on,),
    PutsTheBatchSecond: (contracts.test_states_are_cloned_forked_reordered_and_reset,),
    TakesAnyRows: (
        contracts.test_a_state_of_other_rows_is_refused,
        contracts.test_what_does_not_fit_is_refused,
    ),
    TakesAnyKeyword: (contracts.test_what_does_not_fit_is_refused,),
    WidensTheOutput: (contracts.test_half_precision_parameters,),
    RoundsTheState: (contracts.test_half_precision_parameters,),
    IsFarOffInHalfPrecision: (contracts.test_half_precision_parameters,),
    HasAnIdleParameter: (of_mixers.test_every_parameter_matters,),
    DropsInTraining: (contracts.test_training_and_evaluation_are_the_same,),
    CannotBeCopied: (contracts.test_copies_and_files,),
    DetachesAWeight: (contracts.test_gradients_are_derivatives,),
}

#: how a test fails; the last two are of mixers that cannot do what the test asks at all
FAILURES = (AssertionError, GradcheckError, pytest.fail.Exception, IndexError, AttributeError)

CASES = [
    pytest.param(broken, test, id=f"{broken.__name__}-{getattr(test, '__name__', i)}")
    for broken, tests in BREAKS.items()
    for i, test in enumerate(tests)
]


def subject_of(cls: type[Fading]) -> Subject:
    return Subject(cls.__name__, seeded(cls(WIDTH)), WIDTH, frozenset())


@pytest.mark.parametrize(("broken", "test"), CASES)
def test_a_broken_mixer_is_seen(broken: type[Fading], test: Callable[..., None]) -> None:
    test(subject=subject_of(Fading))
    with pytest.raises(FAILURES):
        test(subject=subject_of(broken))


def test_what_a_fault_does_not_touch_passes() -> None:
    contracts.test_training_and_evaluation_are_the_same(subject_of(IgnoresBoundaries))
    contracts.test_pieces_of_any_length_equal_the_whole(subject=subject_of(IgnoresBoundaries))
    contracts.test_pieces_of_any_length_equal_the_whole(subject=subject_of(MasksTheInputAlone))
    contracts.test_packed_sequences_equal_each_alone(subject_of(MasksTheInputAlone))
