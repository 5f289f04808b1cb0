"""Contracts 2 to 7 as tests of one subject: tests/mixers and tests/models run them on theirs.

A test module imports all names from here and has `pytest_generate_tests` call :func:`parametrize`.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor, nn

from lavagna.errors import InputError, ShapeError, StateError
from lavagna.models import BlockState, ModelState
from lavagna.ops.softmax.cache import KVCache
from lavagna.ops.tree import leaves, map_tensors, named_leaves, nbytes, select

from .contracts import (
    LENGTHS,
    ROWS,
    Subject,
    agree,
    alone,
    answer,
    exact_alone,
    exact_whole,
    in_pieces,
    inputs,
    kept_bytes,
    layouts,
    padded,
    random,
    read_state,
    values,
)
from .operators import upstream

Test = TypeVar("Test", bound=Callable[..., None])


def everything(subject: Subject) -> bool:
    return True


def stateful(subject: Subject) -> bool:
    """Whether it has a state at all."""
    return bool(leaves(subject.module.init_state(1)))


def binds(
    contract: str | None = None, *, only: Callable[[Subject], bool] = everything, subset: bool = False
) -> Callable[[Test], Test]:
    """Choose the subjects of a test.

    Args:
        contract: those that it binds.
        only: those of whom this is true.
        subset: the representative ones among them belong to the marked subset.
    """

    def decorate(test: Test) -> Test:
        test.binds = (contract, only, subset)
        return test

    return decorate


def parametrize(
    metafunc: pytest.Metafunc, subjects: Sequence[Subject], representative: Callable[[Subject], bool]
) -> None:
    """Give a test of this module its subjects.

    Args:
        representative: whether a subject belongs to the marked subset.
    """
    if "subject" not in metafunc.fixturenames:
        return
    contract, only, subset = getattr(metafunc.function, "binds", (None, everything, False))
    metafunc.parametrize(
        "subject",
        [
            pytest.param(s, id=s.name, marks=[pytest.mark.subset] if subset and representative(s) else [])
            for s in subjects
            if contract not in s.excepted and only(s)
        ],
    )


def nan(like: Tensor) -> Tensor:
    return torch.full_like(like, float("nan"))


# 2. Cut anywhere -------------------------------------------------------------------------------------------


@binds("cut anywhere", subset=True)
@hypothesis.settings(max_examples=2)
@hypothesis.example(cuts=[0, 0, 1, 64, 70])
@hypothesis.example(cuts=[33])
@hypothesis.given(cuts=st.lists(st.integers(0, 70), max_size=5).map(sorted))
def test_pieces_of_any_length_equal_the_whole(subject: Subject, cuts: list[int]) -> None:
    x, state = inputs(subject, ROWS, 70, ROWS)
    agree(answer(subject, x, state, in_pieces(subject, x, state, cuts)), exact_whole(subject, 70))


@binds("cut anywhere")
def test_one_token_at_a_time_equals_the_whole(subject: Subject) -> None:
    x, start = inputs(subject, ROWS, 9, ROWS)
    outputs, state = [], start
    for token in x.unbind(1):
        output, state = subject.step(token, state)
        outputs.append(output)
    agree(answer(subject, x, start, (torch.stack(outputs, 1), state)), exact_whole(subject, 9))


@binds(only=stateful)
def test_no_state_is_the_first_state_is_a_state_of_zeros(subject: Subject) -> None:
    x, _ = inputs(subject, ROWS, 7, ROWS)
    first = subject.module.init_state(ROWS)
    assert not any(t.any() for t in leaves(first))
    expected = subject(x)
    zeros = map_tensors(torch.zeros_like, subject(x[:, :0])[1])
    for state in (first, zeros):
        assert [(name, t.shape, t.dtype) for name, t in named_leaves(state)] == [
            (name, t.shape, t.dtype) for name, t in named_leaves(first)
        ]
        agree(values(*subject(x, state)), values(*expected), 1e-14)


@binds("cut anywhere")
def test_no_token_changes_no_state(subject: Subject) -> None:
    state = read_state(subject, 3)
    for mask in (None, torch.zeros(3, 0, dtype=torch.bool), torch.zeros(3, 4, dtype=torch.bool)):
        x = random(3, 0 if mask is None else mask.shape[1], subject.width)
        output, final = subject(x, state, token_mask=mask)
        assert output.shape[:2] == x.shape[:2]
        assert not output.any()
        agree(values(output, final), values(output, state), 0)


# 3. Neighbours don't matter --------------------------------------------------------------------------------

in_one_segment = {name: masks for name, masks in layouts(LENGTHS).items() if len(masks) == 1}
in_segments = {name: masks for name, masks in layouts(LENGTHS).items() if len(masks) > 1}


def check_padding(subject: Subject, masks: Sequence[Tensor]) -> None:
    x, state = inputs(subject, 1, sum(LENGTHS), len(LENGTHS))
    agree(answer(subject, x, state, padded(subject, x, state, masks, nan)), exact_alone(subject, LENGTHS))


@binds(subset=True)
@pytest.mark.parametrize("masks", in_one_segment.values(), ids=in_one_segment)
def test_padding_changes_nothing(subject: Subject, masks: Sequence[Tensor]) -> None:
    check_padding(subject, masks)


@binds("cut anywhere")
@pytest.mark.parametrize("masks", in_segments.values(), ids=in_segments)
def test_padded_segments_change_nothing(subject: Subject, masks: Sequence[Tensor]) -> None:
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
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_packed_sequences_equal_each_alone(subject: Subject, dtype: torch.dtype) -> None:
    x, state = inputs(subject, 1, sum(LENGTHS), len(LENGTHS))
    bounds = torch.tensor([0, *LENGTHS]).cumsum(0).to(dtype)
    agree(answer(subject, x, state, subject(x, state, cu_seqlens=bounds)), exact_alone(subject, LENGTHS))


@pytest.mark.parametrize("lengths", [(), (0, 0)], ids=["no sequence", "empty sequences"])
def test_nothing_can_be_packed(subject: Subject, lengths: tuple[int, ...]) -> None:
    x = random(1, 0, subject.width)
    output, state = subject(x, cu_seqlens=torch.tensor([0, *lengths]))
    assert output.shape[:2] == (1, 0)
    assert {t.shape[0] for t in leaves(state)} <= {len(lengths)}


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


def test_a_broken_row_breaks_no_other(subject: Subject) -> None:
    x = random(1, 12, subject.width).expand(3, -1, -1).clone()
    lengths = torch.tensor([0, 12, 24, 36])
    expected = subject(x)[0]
    x[1] = float("nan")
    for output in (subject(x)[0], subject(x.reshape(1, 36, -1), cu_seqlens=lengths)[0].unflatten(1, (3, 12))[0]):
        agree({"rows": output[[0, 2]].detach()}, {"rows": expected[[0, 2]].detach()}, 1e-12)


# 4. The past cannot see the future -------------------------------------------------------------------------


@binds("the past cannot see the future", subset=True)
def test_the_past_has_no_gradient_from_the_future(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 70, ROWS)
    output, _ = subject(x, state)
    for t in (1, 16, 33, 63, 64, 65):
        (gradient,) = torch.autograd.grad(
            output[:, :t], x, upstream(output[:, :t].shape, x.dtype, torch.float32), retain_graph=True
        )
        leak = gradient[:, t:].abs().max().item()
        assert leak <= 1e-14 * gradient.abs().max().item(), f"outputs before {t} depend on tokens at or after it"


@binds("the past cannot see the future")
@hypothesis.settings(max_examples=2)
@hypothesis.example(t=64)
@hypothesis.given(t=st.integers(0, 69))
def test_changing_tokens_changes_nothing_before_them(subject: Subject, t: int) -> None:
    x, other = random(1, 70, subject.width), random(1, 70, subject.width, seed="other")
    with torch.no_grad():
        output, got = subject(x)[0], subject(torch.cat([x[:, :t], other[:, t:]], 1))[0]
    agree({"outputs before": got[:, :t]}, {"outputs before": output[:, :t]}, 1e-14)
    assert not torch.equal(got[:, t:], output[:, t:])


# 5. Finite -------------------------------------------------------------------------------------------------


@hypothesis.settings(max_examples=2)
@hypothesis.example(scale=0.0, tokens=66)
@hypothesis.example(scale=1e3, tokens=66)
@hypothesis.example(scale=1e3, tokens=1)
@hypothesis.given(scale=st.sampled_from([0.0, 1e-20, 1e-3, 1e2, 1e3]), tokens=st.integers(0, 66))
def test_outputs_states_and_gradients_are_finite(subject: Subject, scale: float, tokens: int) -> None:
    narrow = subject.on(narrowed(subject, torch.float32))
    x = (scale * random(ROWS, tokens, subject.width, dtype=torch.float32)).requires_grad_()
    for name, tensor in answer(narrow, x, None, narrow(x)).items():
        assert torch.isfinite(tensor).all(), f"{name} is not finite"


@pytest.mark.parametrize("shape", [(0, 5), (2, 0), (0, 0)], ids=["no row", "no token", "neither"])
def test_empty_batches(subject: Subject, shape: tuple[int, int]) -> None:
    x = random(*shape, subject.width).requires_grad_()
    found = answer(subject, x, None, subject(x))
    assert found["output"].shape[:2] == shape
    assert not any(t.isnan().any() for t in found.values())
    mask = torch.zeros(shape, dtype=torch.bool)
    assert subject(x, token_mask=mask)[0].shape[:2] == shape


def test_a_batch_of_padding_alone(subject: Subject) -> None:
    x = nan(random(3, 4, subject.width)).requires_grad_()
    found = answer(subject, x, None, subject(x, token_mask=torch.zeros(3, 4, dtype=torch.bool)))
    for name, tensor in found.items():
        assert not tensor.any(), f"{name} is not zero"


# 6. Constant memory, and no state outside of the state -----------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@binds(only=stateful)
def test_bytes_of_the_state_are_as_announced(subject: Subject, dtype: torch.dtype) -> None:
    narrow = subject.on(narrowed(subject, dtype))
    assert nbytes(narrow.module.init_state(3)) == narrow.state_bytes(0, 3)
    for context in (0, 1, 4, 5, 100):
        with torch.no_grad():
            _, state = narrow(random(3, context, subject.width, dtype=dtype))
        assert nbytes(state) == narrow.state_bytes(context, 3), f"after {context} tokens"
        assert [t.dtype for t in leaves(state)] == [t.dtype for t in leaves(narrow.module.init_state(3))]


def state_sizes(subject: Subject, contexts: Sequence[int]) -> list[int]:
    with torch.no_grad():
        return [nbytes(subject(random(1, context, subject.width))[1]) for context in contexts]


@binds("constant memory")
def test_the_state_does_not_grow(subject: Subject) -> None:
    assert len(set(state_sizes(subject, (50, 100, 200)))) == 1
    assert len({subject.state_bytes(context) for context in (50, 100, 10**9)}) == 1


@binds("constant memory", only=stateful)
def test_the_state_keeps_no_other_memory_alive(subject: Subject) -> None:
    """A state that is a view of a longer tensor keeps all of it in memory."""

    def whole(tokens: int) -> int:
        return kept_bytes(subject(random(2, tokens, subject.width))[1])

    def masked(tokens: int) -> int:
        mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 9]])
        return kept_bytes(subject(random(2, tokens, subject.width), token_mask=mask)[1])

    def by_steps(tokens: int) -> int:
        state = subject.module.init_state(2)
        for _ in range(tokens):
            _, state = subject.step(random(2, subject.width), state)
        return kept_bytes(state)

    with torch.no_grad():
        for read, few in ((whole, 50), (masked, 50), (by_steps, 20)):
            assert read(few) == read(2 * few), read.__name__


def snapshot(module: nn.Module) -> dict[str, Any]:
    """Everything that hangs on a module, by name, with the versions of its tensors."""
    found: dict[str, Any] = {}
    for prefix, part in module.named_modules():
        for key, value in vars(part).items():
            entries = value.items() if isinstance(value, dict) else [("", value)]
            for inner, item in entries:
                version = item._version if isinstance(item, Tensor) else None
                found[f"{prefix}.{key}.{inner}"] = (id(item), version)
    return found


def test_reading_leaves_no_trace_on_the_module(subject: Subject) -> None:
    before, numbers = snapshot(subject.module), {n: p.clone() for n, p in subject.module.state_dict().items()}
    x, state = inputs(subject, ROWS, 9, ROWS)
    first = values(*subject(x, state))
    subject(x, token_mask=torch.arange(9) > torch.tensor([[1], [4]]))
    subject(random(1, 9, subject.width), cu_seqlens=torch.tensor([0, 4, 9]))
    with torch.inference_mode():
        subject(random(3, 4, subject.width))
    second = values(*subject(x, state))
    assert snapshot(subject.module) == before
    for name, tensor in subject.module.state_dict().items():
        assert torch.equal(tensor, numbers[name]), name
    for name, tensor in first.items():
        assert torch.equal(second[name], tensor), name


@binds(only=stateful)
def test_two_sequences_read_in_turn_do_not_meet(subject: Subject) -> None:
    xs = [random(ROWS, 12, subject.width, seed=seed) for seed in ("a", "b")]
    states: list[Any] = [None, None]
    outputs: list[list[Tensor]] = [[], []]
    with torch.no_grad():
        for start, stop in ((0, 4), (4, 5), (5, 6), (6, 12)):
            for i, x in enumerate(xs):
                output, states[i] = subject(x[:, start:stop], states[i])
                outputs[i].append(output)
        for i, x in enumerate(xs):
            agree(values(torch.cat(outputs[i], 1), states[i]), values(*subject(x)))


@binds(only=stateful)
def test_nothing_handed_in_is_written_on(subject: Subject) -> None:
    """A state can be continued again, and differently, whatever was read from it before."""
    mask, bounds = torch.arange(4) > torch.tensor([[0], [2]]), torch.tensor([0, 1, 4])
    for mode in (torch.enable_grad, torch.inference_mode):
        with mode():
            x, packed = random(ROWS, 4, subject.width), random(1, 4, subject.width)
            _, state = subject(random(ROWS, 6, subject.width, seed="prompt"))
            for _ in range(3):  # where a cache has room for what follows
                _, state = subject.step(random(ROWS, subject.width, seed="more"), state)
            handed = [x, packed, mask, bounds]
            copies = [t.clone() for t in handed]
            before = {name: t.clone() for name, t in named_leaves(state)}
            expected = values(*subject(x, map_tensors(torch.clone, state)))
            subject.step(random(ROWS, subject.width), state)
            subject(x, state, token_mask=mask)
            subject(packed, state, cu_seqlens=bounds)
            got = values(*subject(x, state))
            for tensor, copied in zip(handed, copies, strict=True):
                assert torch.equal(tensor, copied)
            for name, tensor in named_leaves(state):
                assert torch.equal(tensor, before[name]), name
            agree(got, expected, 1e-12)


def as_model_state(state: Any) -> ModelState:
    return state if isinstance(state, ModelState) else ModelState((BlockState(state, None),), None)


def of_subject(state: ModelState, like: Any) -> Any:
    return state if isinstance(like, ModelState) else state.layers[0].mixer


@binds(only=stateful)
def test_states_are_cloned_forked_reordered_and_reset(subject: Subject) -> None:
    state = read_state(subject, 3, 6)
    whole = as_model_state(state)

    def check(changed: ModelState, rows: list[int]) -> None:
        got = values(*subject(x[rows], of_subject(changed, state)))
        one_by_one = [subject(x[[r]], select(state, torch.tensor([r]))) for r in rows]
        agree({"output": got["output"]}, {"output": torch.cat([y for y, _ in one_by_one])}, 1e-12)

    with torch.no_grad():
        x = random(3, 4, subject.width)
        check(whole.clone(), [0, 1, 2])
        check(whole.fork(2), [0, 0, 1, 1, 2, 2])
        check(whole.reorder(torch.tensor([2, 0, 0, 1])), [2, 0, 0, 1])
        check(whole.to("cpu"), [0, 1, 2])
        for mine, theirs in zip(leaves(whole.clone()), leaves(whole), strict=True):
            assert torch.equal(mine, theirs)
            assert mine.untyped_storage().data_ptr() != theirs.untyped_storage().data_ptr() or not mine.numel()
        forgotten = of_subject(whole.reset(torch.tensor([False, True, True])), state)
        output, _ = subject(x, forgotten)
        agree({"reset": output[1:]}, {"reset": subject(x[1:])[0]}, 1e-12)
        agree({"kept": output[:1]}, {"kept": subject(x[:1], select(state, torch.tensor([0])))[0]}, 1e-12)


# 7. Clear refusal ------------------------------------------------------------------------------------------


def refused(error: type[Exception], words: str, subject: Subject, x: Any, state: Any = None, **arguments: Any) -> None:
    with pytest.raises(error, match=words) as caught:
        subject(x, state, **arguments)
    assert "\n" not in str(caught.value)


class _Strange(NamedTuple):
    """The state of something else."""

    memory: Tensor


def test_what_does_not_fit_is_refused(subject: Subject) -> None:
    D = subject.width
    x, mask = random(2, 5, D), torch.ones(2, 5, dtype=torch.bool)
    bounds = torch.tensor([0, 2, 5])
    refused(ShapeError, f"D={D}.*got|got.*{D + 1}", subject, random(2, 5, D + 1))
    refused(ShapeError, r"got .*\[5, 16\]", subject, random(5, D))
    refused(InputError, "token_mask or cu_seqlens, not both", subject, x, token_mask=mask, cu_seqlens=bounds)
    refused(ShapeError, "must be bool.*got torch.int64", subject, x, token_mask=mask.long())
    refused(ShapeError, r"token_mask.*got .*\[2, 4\]", subject, x, token_mask=mask[:, :4])
    refused(ShapeError, "packed sequences need batch 1, got batch 2", subject, x, cu_seqlens=bounds)
    refused(InputError, r"rise from 0 to T=5, got \[0, 2, 4\]", subject, x[:1], cu_seqlens=torch.tensor([0, 2, 4]))
    refused(ShapeError, "int32 or int64", subject, x[:1], cu_seqlens=torch.tensor([0.0, 5.0]))
    refused(ShapeError, "int32 or int64 tensor .* got list", subject, x[:1], cu_seqlens=[0, 5])
    refused(ShapeError, "must have a floating dtype, got torch.int64", subject, x.long())
    refused(ShapeError, "must be a tensor of shape .* got list", subject, x.tolist())
    refused(StateError, "state must be .*, got a _Strange", subject, x, _Strange(x))
    with pytest.raises(TypeError, match="token_maks"):
        subject(x, token_maks=mask)


@binds(only=stateful)
def test_rows_of_a_state_that_are_none_are_refused(subject: Subject) -> None:
    state = as_model_state(read_state(subject, 3))
    for rows in (torch.tensor([True]), torch.ones(4, dtype=torch.bool), torch.tensor([1, 0, 0]), [True, False, False]):
        with pytest.raises(StateError, match=r"reset: rows must be a bool tensor of shape \[3\], got"):
            state.reset(rows)
    for index in (torch.tensor([0.0]), torch.tensor([[0, 1]]), torch.tensor([True, False, True]), [0, 1]):
        with pytest.raises(StateError, match=r"reorder: rows must be an int64 tensor of shape \[n\], got"):
            state.reorder(index)
    for index in (torch.tensor([3]), torch.tensor([0, -1])):
        with pytest.raises(StateError, match="reorder: rows must be from 0 to 2, got"):
            state.reorder(index)
    with pytest.raises(StateError, match="n must be at least 1, got 0"):
        state.fork(0)


@binds(only=stateful)
def test_a_state_of_other_rows_is_refused(subject: Subject) -> None:
    state = read_state(subject, 3)
    x = random(2, 5, subject.width)
    refused(StateError, "must have 2 rows, got 3", subject, x, state)
    refused(StateError, "must have 2 rows, got 3", subject, x, state, token_mask=torch.ones(2, 5, dtype=torch.bool))
    refused(StateError, "must have 2 rows, got 3", subject, x[:1], state, cu_seqlens=torch.tensor([0, 2, 5]))
    refused(StateError, "must have 2 rows, got 0", subject, x, subject.module.init_state(0))


# Precision -------------------------------------------------------------------------------------------------


def narrowed(subject: Subject, dtype: torch.dtype) -> nn.Module:
    """A copy of the module in another dtype."""
    return copy.deepcopy(subject.module).to(dtype)


def check_near(name: str, got: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Demand a root-mean-square error of at most ROUNDINGS · eps(dtype) of the exact values' own size.

    The largest error says little here: a norm of small numbers enlarges their rounding without bound.
    """
    assert torch.isfinite(got).all(), f"{name} is not finite"
    exact = exact.detach().double()
    far = (got.detach().double() - exact).norm() / exact.norm()
    bound = ROUNDINGS * torch.finfo(dtype).eps
    assert far <= bound, f"{name}: error {far:.3g} of its size, allowed {bound:.3g}"


#: each value is rounded a dozen times on its way through two blocks, half an epsilon each time
ROUNDINGS = 6

half_precision = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])


def recurrent(state: Any) -> list[Tensor]:
    """The tensors of a state, those of key-value caches left out."""
    if isinstance(state, KVCache):
        return []
    if isinstance(state, ModelState):
        return recurrent(tuple(state.layers))
    if isinstance(state, tuple):
        return [t for part in state for t in recurrent(part)]
    return leaves(state)


def check_half_precision(subject: Subject, x: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Hold a subject in half precision to its output without rounding."""
    whole, state = subject(x)
    readings = {"output": whole}
    if "cut anywhere" not in subject.excepted:
        readings["pieces"], last = in_pieces(subject, x, None, (1, 2, 30))
        readings["pieces from the first state"], _ = in_pieces(subject, x, subject.module.init_state(ROWS), (1, 2, 30))
        for final in (state, last):
            assert {t.dtype for t in recurrent(final)} <= {torch.float32, torch.complex64, torch.int64}
    first, _ = subject(x, token_mask=torch.arange(40) >= torch.tensor([[0], [39]]))
    readings["row without padding"] = torch.cat([first[:1], whole[1:]])
    for name, output in readings.items():
        assert output.dtype == dtype
        check_near(name, output, exact, dtype)
    asked = {"x": x, **dict(subject.module.named_parameters())}
    found = torch.autograd.grad(whole.float().sum(), list(asked.values()), allow_unused=True)
    for (name, tensor), gradient in zip(asked.items(), found, strict=True):
        assert gradient is None or gradient.dtype == tensor.dtype
        if dtype == torch.bfloat16 and gradient is not None:  # float16 has no room for the slopes of a division
            assert torch.isfinite(gradient).all(), f"gradient of {name} is not finite"


@half_precision
@binds(subset=True)
def test_half_precision_parameters(subject: Subject, dtype: torch.dtype) -> None:
    half = narrowed(subject, dtype)
    x = random(ROWS, 40, subject.width, dtype=dtype)
    exact, _ = subject.on(copy.deepcopy(half).double())(x.double())
    check_half_precision(subject.on(half), x.requires_grad_(), exact, dtype)


@half_precision
def test_autocast(subject: Subject, dtype: torch.dtype) -> None:
    narrow = subject.on(narrowed(subject, torch.float32))
    x = random(ROWS, 40, subject.width, dtype=torch.float32)
    exact, _ = narrow(x)
    with torch.autocast("cpu", dtype=dtype):
        check_half_precision(narrow, x.requires_grad_(), exact, dtype)


# Modules like any other ------------------------------------------------------------------------------------


def test_copies_and_files(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 9, ROWS)
    expected = values(*subject(x, state))
    deep = copy.deepcopy(subject.module)
    loaded = copy.deepcopy(subject.module)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.load_state_dict(subject.module.state_dict())
    for module in (deep, loaded, pickle.loads(pickle.dumps(subject.module))):
        assert list(module.state_dict()) == list(subject.module.state_dict())
        for name, tensor in values(*subject.on(module)(x, state)).items():
            assert torch.equal(tensor, expected[name]), name


@binds(only=stateful)
def test_states_are_copied_and_pickled(subject: Subject) -> None:
    with torch.no_grad():
        state = read_state(subject, 3)
        for _ in range(2):  # where a cache has room for more
            _, state = subject.step(random(3, subject.width), state)
        x = random(3, 4, subject.width)
        copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
        subject(x, state)
        expected = values(*subject(x, state))
        for one in copies:
            agree(values(*subject(x, one)), expected, 0)


def test_strides_do_not_matter(subject: Subject) -> None:
    x = random(7, 3, subject.width).transpose(0, 1)
    agree(values(*subject(x)), values(*subject(x.contiguous())), 1e-12)
    same = random(1, 7, subject.width).expand(3, -1, -1)
    agree(values(*subject(same)), values(*subject(same.contiguous())), 1e-12)
    wide = random(3, 7, 2 * subject.width)[..., ::2]
    agree(values(*subject(wide)), values(*subject(wide.contiguous())), 1e-12)


def test_training_and_evaluation_are_the_same(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 9, ROWS)
    expected = values(*subject(x, state))
    module = copy.deepcopy(subject.module).train()
    for name, tensor in values(*subject.on(module)(x, state)).items():
        assert torch.equal(tensor, expected[name]), name


def test_without_gradients_the_answer_is_the_same(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 20, ROWS)
    expected = values(*subject(x, state))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            agree(values(*subject(x, state)), expected, 1e-12)


@binds(subset=True)
def test_gradients_are_derivatives(subject: Subject) -> None:
    x, state = inputs(subject, 1, 4, 1)
    parameters = dict(subject.module.named_parameters())
    asked = {"x": x, **{f"state.{name}": t for name, t in named_leaves(state) if t.requires_grad}, **parameters}
    parts = len(asked) - len(parameters)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        x, *given = tensors[:parts]
        state_parts = iter(given)
        start = map_tensors(lambda t: next(state_parts) if t.requires_grad else t, state)
        output, final = subject.with_parameters(dict(zip(parameters, tensors[parts:], strict=True)), x, start)
        return tuple(t for t in (output, *leaves(final)) if t.requires_grad)

    assert torch.autograd.gradcheck(function, tuple(asked.values()), fast_mode=True)
