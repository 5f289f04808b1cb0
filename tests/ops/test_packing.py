from __future__ import annotations

from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, ShapeError
from lavagna.ops.packing import Padding, check_cu_seqlens, lengths_of, run_packed

lengths_lists = st.lists(st.integers(0, 9), max_size=6)


def bounds_of(lengths: list[int]) -> list[int]:
    return torch.tensor([0, *lengths]).cumsum(0).tolist()


# Boundaries ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("bounds", [[0], [0, 0], [0, 7], [0, 0, 3, 3, 7, 7]], ids=str)
def test_boundaries_come_back_as_a_list(bounds: list[int], dtype: torch.dtype) -> None:
    cu_seqlens = torch.tensor(bounds, dtype=dtype)
    assert check_cu_seqlens("op", cu_seqlens, 1, bounds[-1]) == bounds
    assert lengths_of(cu_seqlens).tolist() == [b - a for a, b in pairwise(bounds)]


@pytest.mark.parametrize("bounds", [[1, 7], [0, 6], [0, 8], [0, 5, 4, 7], [-1, 7]], ids=str)
def test_boundaries_must_rise_from_nothing_to_all(bounds: list[int]) -> None:
    with pytest.raises(InputError) as caught:
        check_cu_seqlens("op", torch.tensor(bounds), 1, 7)
    assert str(caught.value) == f"op: cu_seqlens must rise from 0 to T=7, got {bounds}"


def test_many_boundaries_are_not_all_printed() -> None:
    with pytest.raises(InputError, match=r"got \[0, 1, 2, 3, 4, 5, 6, 7\]\.\.\."):
        check_cu_seqlens("op", torch.arange(1000), 1, 7)


def test_boundaries_are_integers_in_one_dimension() -> None:
    for wrong in (torch.tensor([0.0, 7.0]), torch.tensor([[0, 7]]), torch.tensor(7), torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(ShapeError, match=r"int32 or int64 of shape \[M\+1\], got " + str(wrong.dtype)):
            check_cu_seqlens("op", wrong, 1, 7)


def test_packed_sequences_are_one_row() -> None:
    with pytest.raises(ShapeError, match="op: packed sequences need batch 1, got batch 2"):
        check_cu_seqlens("op", torch.tensor([0, 7]), 2, 7)


# Padded batches --------------------------------------------------------------------------------------------


def test_a_mask_becomes_positions_and_boundaries() -> None:
    mask = torch.tensor([[0, 1, 1], [0, 0, 0], [1, 0, 0], [1, 0, 1]]).bool()
    padding = Padding.of(mask)
    assert padding.place.tolist() == [1, 2, 6, 9, 11]
    assert padding.cu_seqlens.tolist() == [0, 2, 2, 3, 5]
    assert (padding.batch, padding.tokens) == (4, 3)
    check_cu_seqlens("op", padding.cu_seqlens, 1, 5)
    x = torch.arange(12).reshape(4, 3, 1)
    assert padding.pack(x).tolist() == [[[1], [2], [6], [9], [11]]]
    assert padding.unpack(padding.pack(x)).squeeze(2).tolist() == [[0, 1, 2], [0, 0, 0], [6, 0, 0], [9, 0, 11]]


@hypothesis.given(
    mask=st.tuples(st.integers(0, 4), st.integers(0, 5)).flatmap(
        lambda shape: st.lists(
            st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]), min_size=shape[0], max_size=shape[0]
        ).map(lambda rows: torch.tensor(rows, dtype=torch.bool).reshape(shape))
    )
)
def test_unpacking_what_was_packed_leaves_the_real_tokens_and_their_gradients(mask: Tensor) -> None:
    x = torch.randn(*mask.shape, 2, 3, requires_grad=True)
    padding = Padding.of(mask)
    packed = padding.pack(x)
    assert packed.shape == (1, int(mask.sum()), 2, 3)
    back = padding.unpack(packed)
    expected = torch.where(mask[:, :, None, None], x, 0)
    assert torch.equal(back, expected)
    upstream = torch.randn_like(back)
    (got,) = torch.autograd.grad(back, x, upstream)
    assert torch.equal(got, torch.where(mask[:, :, None, None], upstream, 0))


# Running packed sequences ----------------------------------------------------------------------------------


def fading_sum(group: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """s_t = decay_t · s_{t−1} + x_t; a token with x of 0 and decay of 1 changes nothing."""
    outputs = []
    for t in range(group["x"].shape[1]):
        state = group["decay"][:, t] * state + group["x"][:, t]
        outputs.append(state)
    return (torch.stack(outputs, 1) if outputs else group["x"]), state


def sample(lengths: list[int]) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(len(lengths))
    x = torch.randn(1, sum(lengths), 2, generator=generator, dtype=torch.float64)
    decay = torch.rand(1, sum(lengths), 2, generator=generator, dtype=torch.float64)
    state = torch.randn(len(lengths), 2, generator=generator, dtype=torch.float64)
    return {"x": x, "decay": decay}, state


@hypothesis.given(lengths=lengths_lists)
@hypothesis.example([])
@hypothesis.example([0])
@hypothesis.example([0, 0, 5, 0])
@hypothesis.example([8, 1, 7, 0, 2, 9])
def test_packed_sequences_run_as_if_alone(lengths: list[int]) -> None:
    timed, state = sample(lengths)
    bounds = bounds_of(lengths)
    leaves = [*(t.requires_grad_() for t in timed.values()), state.requires_grad_()]
    parts = [
        fading_sum({n: t[:, a:b] for n, t in timed.items()}, state[m : m + 1])
        for m, (a, b) in enumerate(pairwise(bounds))
    ]
    expected = torch.cat([timed["x"][:, :0], *(p[0] for p in parts)], 1)
    expected_state = torch.cat([state[:0], *(p[1] for p in parts)])
    for alone in (False, True):
        output, final = run_packed(fading_sum, timed, {"decay": 1.0}, state, bounds, alone=alone)
        assert torch.equal(output, expected)
        assert torch.equal(final, expected_state)
        got, exact = (
            torch.autograd.grad(
                (output * output).sum() + final.sin().sum(), leaves, retain_graph=True, allow_unused=True
            )
            for output, final in ((output, final), (expected, expected_state))
        )
        for a, b in zip(got, exact, strict=True):
            a, b = (torch.zeros(()) if t is None else t for t in (a, b))
            torch.testing.assert_close(a.expand_as(b), b, rtol=1e-14, atol=1e-14, check_dtype=False)


def test_padding_is_bounded_and_in_few_calls() -> None:
    """Sequences run in groups whose lengths are within a factor of two, each padded to its longest."""
    lengths = [1, 100, 2, 3, 65, 0, 127, 64, 3, 1]
    timed, state = sample(lengths)
    seen = []

    def run(group: dict[str, Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(tuple(group["x"].shape[:2]))
        return fading_sum(group, rows)

    run_packed(run, timed, {"decay": 1.0}, state, bounds_of(lengths))
    assert sorted(seen) == [(1, 0), (2, 1), (3, 3), (4, 127)]
    assert sum(n * longest for n, longest in seen) <= 2 * sum(lengths)
    seen.clear()
    run_packed(run, timed, {}, state, bounds_of(lengths), alone=True)
    assert [longest for _, longest in seen] == lengths


def test_nobody_sees_a_token_of_a_neighbour() -> None:
    lengths = [3, 2]
    timed, state = sample(lengths)
    timed["x"][:, 3:] = float("nan")
    output, final = run_packed(fading_sum, timed, {"decay": 1.0}, state, bounds_of(lengths))
    assert torch.isfinite(output[:, :3]).all()
    assert torch.isfinite(final[0]).all()
    assert torch.isnan(final[1]).all()
