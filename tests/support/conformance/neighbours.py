"""Contract 3: neighbours don't matter, neither padding nor other sequences nor other rows."""

from __future__ import annotations

from collections.abc import Sequence

import hypothesis
import hypothesis.strategies as st
import torch
from torch import Tensor

from lavagna.ops.tree import leaves, select

from ..contracts import LENGTHS, Subject, agree, alone, answer, exact_alone, inputs, layouts, padded, random, values
from ..operators import upstream
from .binding import binds, nan

in_one_segment = {name: masks for name, masks in layouts(LENGTHS).items() if len(masks) == 1}
in_segments = {name: masks for name, masks in layouts(LENGTHS).items() if len(masks) > 1}


def check_padding(subject: Subject, masks: Sequence[Tensor]) -> None:
    x, state = inputs(subject, 1, sum(LENGTHS), len(LENGTHS))
    agree(answer(subject, x, state, padded(subject, x, state, masks, nan)), exact_alone(subject, LENGTHS))


@binds(representatives=True, subset=True)
def test_padding_changes_nothing(subject: Subject) -> None:
    for masks in in_one_segment.values():
        check_padding(subject, masks)


@binds("cut anywhere", representatives=True)
def test_padded_segments_change_nothing(subject: Subject) -> None:
    for masks in in_segments.values():
        check_padding(subject, masks)


@st.composite
def any_masks(draw: st.DrawFn) -> list[Tensor]:
    """Masks of up to three segments of three rows, of any real tokens."""
    widths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    return [
        torch.tensor(draw(st.lists(st.booleans(), min_size=3 * w, max_size=3 * w)), dtype=torch.bool).reshape(3, w)
        for w in widths
    ]


@binds("cut anywhere")
@hypothesis.settings(max_examples=3)
@hypothesis.given(masks=any_masks())
def test_any_mask_and_any_packing_equal_each_row_alone(subject: Subject, masks: list[Tensor]) -> None:
    lengths = torch.stack([mask.sum(1) for mask in masks]).sum(0)
    x, state = inputs(subject, 1, int(lengths.sum()), 3)
    expected = answer(subject, x, state, alone(subject, x, state, lengths.tolist()))
    agree(answer(subject, x, state, padded(subject, x, state, masks, nan)), expected)
    bounds = torch.tensor([0, *lengths.cumsum(0)])
    agree(answer(subject, x, state, subject(x, state, cu_seqlens=bounds)), expected)


@binds(subset=True)
def test_packed_sequences_equal_each_alone(subject: Subject) -> None:
    x, state = inputs(subject, 1, sum(LENGTHS), len(LENGTHS))
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0)
    agree(answer(subject, x, state, subject(x, state, cu_seqlens=bounds)), exact_alone(subject, LENGTHS))
    with torch.no_grad():
        agree(values(*subject(x, cu_seqlens=bounds.int())), values(*subject(x, cu_seqlens=bounds)), 0)


@binds(representatives=True)
def test_nothing_can_be_packed(subject: Subject) -> None:
    for lengths in ((), (0, 0)):
        output, state = subject(random(1, 0, subject.width), cu_seqlens=torch.tensor([0, *lengths]))
        assert output.shape[:2] == (1, 0)
        assert {t.shape[0] for t in leaves(state)} <= {len(lengths)}


@binds(representatives=True)
def test_rows_of_a_batch_do_not_meet(subject: Subject) -> None:
    x, state = inputs(subject, 3, 20, 3)
    output, final = subject(x, state)
    whole = values(output, final)
    order = torch.tensor([2, 0, 1])
    shuffled = values(*subject(x[order], select(state, order)))
    for row, parts in enumerate([(x[b : b + 1], select(state, torch.tensor([b]))) for b in range(3)]):
        one = values(*subject(*parts))
        assert list(one) == list(whole)
        for name, expected in whole.items():
            # A row alone keeps no room for the tokens that longer rows have kept.
            same = expected[row : row + 1, : one[name].shape[1]] if expected.ndim > 1 else expected[row : row + 1]
            agree({name: one[name]}, {name: same}, 1e-12)
    agree(shuffled, {name: t[order] for name, t in whole.items()}, 1e-12)
    results = [t[:1] for t in (output, *leaves(final)) if t.requires_grad]
    ups = [upstream(t.shape, t.dtype, torch.float32) for t in results]
    (gradient,) = torch.autograd.grad(results, [x], ups)
    assert gradient[:1].any()
    assert not gradient[1:].any()


@binds(representatives=True)
def test_a_broken_row_breaks_no_other(subject: Subject) -> None:
    x = random(1, 12, subject.width).expand(3, -1, -1).clone()
    lengths = torch.tensor([0, 12, 24, 36])
    expected = subject(x)[0]
    x[1] = float("nan")
    for output in (subject(x)[0], subject(x.reshape(1, 36, -1), cu_seqlens=lengths)[0].unflatten(1, (3, 12))[0]):
        agree({"rows": output[[0, 2]].detach()}, {"rows": expected[[0, 2]].detach()}, 1e-12)
