"""Faults that people met in systems like this one, one group of tests each: the right value, forward and backward.

Operators, their forms and implementations, mixers and models come from the registries, so that what is added later
meets the same faults.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.data import Batch
from lavagna.errors import ShapeError
from lavagna.mixers.parts.norms import HeadNorm
from lavagna.mixers.registry import MIXERS, build, mixer_class, option_types
from lavagna.models import LanguageModel
from lavagna.ops.dispatch import Row
from lavagna.ops.linear.api import LinearState
from lavagna.ops.spec import Case, Inputs, OpSpec, load_spec
from lavagna.ops.tree import leaves, named_leaves, select
from lavagna.training.loss import BatchLoss

from .support.budget import check_all, close, close_all
from .support.conformance import binds, nan, narrowed, parametrize, recurrent, stateful
from .support.contracts import (
    ROWS,
    Subject,
    agree,
    alone,
    answer,
    exact_whole,
    in_pieces,
    inputs,
    layouts,
    padded,
    random,
    values,
)
from .support.operators import (
    SPECS,
    asking,
    bound,
    changed,
    double,
    draw,
    each,
    exact_alone,
    exact_reference,
    mapped,
    named_inputs,
    packed,
    piece,
    pieces,
    reference_row,
    references,
    resized,
    rows,
    run,
    timed_names,
    upstream,
    variety,
)
from .support.operators import answer as operator_answer
from .support.subjects import ALL, MIXER_SUBJECTS, MODEL_SUBJECTS, VOCAB, seeded
from .support.variants import WIDTH

SUBJECTS = [*MIXER_SUBJECTS, *MODEL_SUBJECTS]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with a `subject` run on every mixer, MLP and model that they bind."""
    parametrize(metafunc, SUBJECTS, lambda subject: subject.name in MIXERS)


def causal(**sizes: int) -> Callable[[OpSpec], list[Case]]:
    """The variety of cases that can be cut."""
    return lambda spec: [case for case in variety(spec, **sizes) if bound(spec, case, "cut anywhere")]


def each_row(op: str) -> pytest.MarkDecorator:
    """Every form and implementation of one operator."""
    spec = load_spec(op)
    return pytest.mark.parametrize("row", [pytest.param(r, id=f"{r.impl}.{r.form}") for r in rows(spec)])


each_op = pytest.mark.parametrize("spec", [pytest.param(spec, id=spec.op) for spec in SPECS])


def tokens_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def language_model(subject: Subject) -> LanguageModel:
    assert isinstance(subject.module, LanguageModel)
    return subject.module


each_model = pytest.mark.parametrize("model_subject", [pytest.param(s, id=s.name) for s in MODEL_SUBJECTS])


# 1. Strong decay: overflow, or the state lost ---------------------------------------------------------------

#: log decays, and what a memory that every token adds one to holds after each
DECAYS = (0.0, -1e4, -0.4, -87.0, 0.0)
HELD = (1.0, 1.0, 1 + math.exp(-0.4), 1.0, 2.0)
#: slope of the sum of HELD by each decay: what was held and is kept, here and in what follows
SLOPES = (0.0, 0.0, math.exp(-0.4), 0.0, 1.0)


def line(*numbers: float, dims: int = 3) -> Tensor:
    """Numbers along time, every other dimension of size one."""
    return torch.tensor(numbers, dtype=torch.float32).reshape(1, -1, *[1] * (dims - 2))


def strong(op: str) -> tuple[dict[str, Tensor], Tensor, tuple[float, ...], tuple[float, ...]]:
    """A call of one head and one channel; the decays in it; its outputs and the slope of their sum by the decays."""
    ones = line(*[1.0] * 5, dims=4)
    decay = line(*DECAYS, dims=4).requires_grad_()
    if op == "gated_linear":
        return {"q": ones, "k": ones, "v": ones, "log_decay": decay}, decay, HELD, SLOPES
    if op == "generalized_delta":
        nothing = torch.zeros_like(ones)
        given = {"q": ones, "k": ones, "v": ones, "a": ones, "b": nothing, "log_decay": decay}
        return given, decay, HELD, SLOPES
    assert op == "gated_delta"
    # Half of the way to 2 from what is kept: 1, 1, 1 + e^-.4/2, 1, 1.5.
    given = {"q": ones, "k": ones, "v": 2 * ones, "beta": line(*[0.5] * 5), "log_decay": decay}
    half = math.exp(-0.4) / 2
    return given, decay, (1.0, 1.0, 1 + half, 1.0, 1.5), (0.0, 0.0, half, 0.0, 0.5)


@pytest.mark.subset
@each(lambda spec: spec.cases[:1] if spec.op in ("gated_linear", "gated_delta", "generalized_delta") else [])
def test_01_strong_decay_by_hand(spec: OpSpec, row: Row, case: Case) -> None:
    tensors, decay, outputs, slopes = strong(spec.op)
    shapes = [decay] if spec.op == "generalized_delta" else [decay, decay[..., 0]]
    for log_decay in shapes:  # a gate for each channel, and one for the head
        call = Inputs({**tensors, "log_decay": log_decay}, {"scale": 1.0})
        output, state = run(spec, row, call)
        close("output", output.flatten(), torch.tensor(outputs), 1e-6)
        close("state", state.flatten(), torch.tensor(outputs[-1:]), 1e-6)
        (slope,) = torch.autograd.grad(output.sum(), decay)
        close("gradient", slope.flatten(), torch.tensor(slopes), 1e-6)


@pytest.mark.subset
@each_row("selective_scan")
def test_01_strong_steps_by_hand(row: Row) -> None:
    # Δ·A is the decay of each token, and B = 1/Δ makes each write 1.
    steps = line(0.1, 1e4, 0.4, 87.0).requires_grad_()
    A = torch.tensor([[-1.0]], requires_grad=True)
    call = Inputs({"x": line(1, 1, 1, 1), "dt": steps, "A": A, "B": 1 / steps.detach(), "C": line(1, 1, 1, 1)}, {})
    output, _ = run(load_spec("selective_scan"), row, call)
    kept = math.exp(-0.4)
    close("output", output.flatten(), torch.tensor([1.0, 1.0, 1 + kept, 1.0]), 1e-6)
    slopes = torch.autograd.grad(output.sum(), [A, steps])
    close("gradient of A", slopes[0], torch.tensor([[0.4 * kept]]), 1e-6)
    # A longer step writes more by 1/Δ, and keeps less: −e^-.4 of what was held.
    close("gradient of Δ", slopes[1].flatten(), torch.tensor([10 + 0.0, 1e-4, 2.5 - kept, 1 / 87]), 1e-5)


@each(lambda spec: [case for case in spec.cases if "extreme" in case.name and case.sizes["T"] <= 100])
def test_01_strong_decay_equals_the_recurrence(spec: OpSpec, row: Row, case: Case) -> None:
    inputs = draw(spec, case)
    check_all(operator_answer(spec, row, inputs), *references(spec, case, inputs))


#: parameters that set how fast a memory fades, and a value with which it forgets everything at once
FORGETS = {"A_log": 9.2, "A_log_real": 9.2, "decay": 9.2, "decay_proj.up.bias": -1.6e5}


def forgets(subject: Subject) -> bool:
    return any(name.endswith(tuple(FORGETS)) for name, _ in subject.module.named_parameters())


@binds(only=forgets)
def test_01_memories_that_forget_beside_memories_that_keep(subject: Subject) -> None:
    module = narrowed(subject, torch.float32)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            for ending, value in FORGETS.items():
                if name.endswith(ending):
                    parameter.view(-1)[::2] = value
    narrow, exact = subject.on(module), subject.on(copy.deepcopy(module).double())
    x = random(ROWS, 70, subject.width, dtype=torch.float32).requires_grad_()
    wide = x.detach().double().requires_grad_()
    got, expected = answer(narrow, x, None, narrow(x)), answer(exact, wide, None, exact(wide))
    for name, tensor in expected.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue  # how many tokens were read
        assert torch.isfinite(got[name]).all(), f"{name} is not finite"
        far = (got[name].to(tensor.dtype) - tensor).norm()
        assert far <= 1e-4 * tensor.norm().clamp(min=1), f"{name}: {far:.3g} from {tensor.norm():.3g}"


# 2. Packed neighbours in each other's gradients -------------------------------------------------------------


@pytest.mark.subset
@each(variety)
def test_02_gradients_of_packed_sequences(spec: OpSpec, row: Row, case: Case) -> None:
    inputs, bounds = packed(spec, case, (2, 3))
    close_all(operator_answer(spec, row, inputs, cu_seqlens=bounds), exact_alone(spec, case, (2, 3)))


def test_02_gradients_of_packed_sequences_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, 1, 5, 2)
    found = answer(subject, x, state, subject(x, state, cu_seqlens=torch.tensor([0, 2, 5])))
    agree(found, answer(subject, x, state, alone(subject, x, state, (2, 3))))


# 3. A norm of two groups ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("kind", ["rmsnorm", "layernorm"])
def test_03_a_grouped_norm_is_two_norms(kind: Any, gate_first: bool) -> None:
    grouped = seeded(HeadNorm(6, heads=2, kind=kind, gate_first=gate_first))
    o, gate = (random(2, 5, 2, 6, seed=seed).requires_grad_() for seed in ("o", "gate"))
    single = []
    for group in range(2):
        norm = HeadNorm(6, kind=kind, gate_first=gate_first).double()
        norm.load_state_dict({name: tensor[group] for name, tensor in grouped.state_dict().items()})
        single.append(norm)
    whole = grouped(o, gate)
    parts = [norm(o[..., g, :], gate[..., g, :]) for g, norm in enumerate(single)]
    close("output", whole, torch.stack(parts, -2), 1e-14)
    up = random(*whole.shape, seed="up")
    found = torch.autograd.grad(whole, [o, gate, *grouped.parameters()], up)
    expected = torch.autograd.grad(torch.stack(parts, -2), [o, gate], up, retain_graph=True)
    close("gradient of o", found[0], expected[0], 1e-13)
    close("gradient of the gate", found[1], expected[1], 1e-13)
    for group, norm in enumerate(single):
        separate = torch.autograd.grad(parts[group], list(norm.parameters()), up[..., group, :])
        for got, exact in zip(found[2:], separate, strict=True):
            close("gradient of a parameter", got[group], exact, 1e-13)


def test_03_groups_of_mamba2_do_not_meet() -> None:
    mixer = seeded(build("mamba2", WIDTH, {"groups": 2, "head_dim": 4, "state_size": 3}))
    seen: list[Tensor] = []
    mixer.out_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = random(1, 5, WIDTH)
    mixer(x)
    (gradient,) = torch.autograd.grad(seen[0][..., :WIDTH].sum(), mixer.norm.weight)
    assert gradient[0].all()
    assert not gradient[1].any()


# 4. The normaliser belongs to the gradient ------------------------------------------------------------------

normalized = [case for case in variety(load_spec("gated_linear"), B=1, T=5) if case.options.get("normalizer")]


@pytest.mark.parametrize("case", normalized, ids=lambda case: case.name)
@each_row("gated_linear")
def test_04_gradients_through_the_normaliser(row: Row, case: Case) -> None:
    spec = load_spec("gated_linear")
    asked = asking(spec, double(draw(spec, case)))
    named = named_inputs(asked)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(named, tensors, strict=True))
        state = LinearState(given.pop("state.S"), given.pop("state.z"))
        output, final = run(spec, row, changed(asked, **given)._replace(state=state))
        return output, *final

    assert torch.autograd.gradcheck(function, tuple(named.values()), fast_mode=True)


# 5. The normaliser belongs to the state ---------------------------------------------------------------------


@pytest.mark.subset
@each_row("gated_linear")
def test_05_the_normaliser_after_a_split(row: Row) -> None:
    spec = load_spec("gated_linear")
    call = {"q": line(1, dims=4), "k": line(1, dims=4)}
    options = {"normalizer": True, "scale": 1.0}
    _, state = run(spec, row, Inputs({**call, "v": line(1, dims=4)}, options))
    output, state = run(spec, row, Inputs({**call, "v": line(3, dims=4)}, options, state))
    # The mean of 1 and 3; forgetting the first key gives 4, forgetting both 3.
    close("output", output.flatten(), torch.tensor([2.0]), 1e-6)
    close("z", state.z.flatten(), torch.tensor([2.0]), 1e-6)


@pytest.mark.parametrize("case", normalized, ids=lambda case: case.name)
@each_row("gated_linear")
def test_05_a_normalised_split_equals_the_whole(row: Row, case: Case) -> None:
    spec = load_spec("gated_linear")
    close_all(pieces(spec, row, double(draw(spec, case)), [2, 3]), exact_reference(spec, case))


# 6. Upstream gradients that are expanded or not contiguous --------------------------------------------------


def upstreams(tensors: list[Tensor]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Gradients as `.sum()`, a transposition and a slice send them, beside the same numbers in plain memory."""
    plain = [torch.randn_like(t) for t in tensors]
    yield [torch.ones((), dtype=t.dtype).expand_as(t) for t in tensors], [torch.ones_like(t) for t in tensors]
    yield [t.transpose(0, -1).contiguous().transpose(0, -1) for t in plain], plain
    yield [torch.stack([t, t], -1)[..., 0] for t in plain], plain


def check_upstreams(results: list[Tensor], asked: Mapping[str, Tensor]) -> None:
    results = [t for t in results if t.requires_grad]
    for strange, plain in upstreams(results):
        found, expected = (
            torch.autograd.grad(results, list(asked.values()), ups, retain_graph=True, materialize_grads=True)
            for ups in (strange, plain)
        )
        agree(dict(zip(asked, found, strict=True)), dict(zip(asked, expected, strict=True)), 1e-12)


@each(lambda spec: variety(spec, B=2, T=7))
def test_06_gradients_of_any_strides(spec: OpSpec, row: Row, case: Case) -> None:
    call = asking(spec, double(draw(spec, case)))
    check_upstreams(leaves(run(spec, row, call)), named_inputs(call))


def test_06_gradients_of_any_strides_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, 2, 7, 2)
    output, final = subject(x, state)
    check_upstreams([output, *leaves(final)], {"x": x, **dict(subject.module.named_parameters())})


# 7. Head sizes that fill no block ---------------------------------------------------------------------------


def between_nans(tensor: Tensor) -> Tensor:
    """The same numbers, with NaN just before the first and just behind the last."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    room = torch.full((tensor.numel() + 128,), float("nan"), dtype=tensor.dtype)
    room[64 : 64 + tensor.numel()] = tensor.flatten()
    return room[64 : 64 + tensor.numel()].view(tensor.shape)


def odd_heads(spec: OpSpec) -> list[Case]:
    """Cases in which each dimension of a head, or the channels, has such a size in turn."""
    cases = [(case, letter) for case in variety(spec, B=1, T=5) for letter in "KVND" if letter in case.sizes]
    return [
        resized(case, **{letter: size})._replace(name=f"{case.name}-{letter}{size}")
        for (case, letter), size in zip(cases, itertools.cycle((48, 60, 100)), strict=False)
        if size % case.sizes.get("G", 1) == 0
    ]


@pytest.mark.subset
@each(odd_heads)
def test_07_nothing_is_read_beyond_a_head(spec: OpSpec, row: Row, case: Case) -> None:
    call = draw(spec, case)
    check_all(operator_answer(spec, row, mapped(call, between_nans)), *references(spec, case, call))


#: options that set the size of a head
HEAD_SIZES = ("key_dim", "value_dim", "head_dim", "state_size")


@pytest.mark.parametrize("size", [48, 60, 100])
@pytest.mark.parametrize(
    ("name", "option"),
    [(n, option) for n in MIXERS for option in option_types(mixer_class(n)).model_fields if option in HEAD_SIZES],
)
def test_07_layers_with_such_heads(name: str, option: str, size: int) -> None:
    extra = {"inner": 2 * size} if (name, option) == ("mamba2", "head_dim") else {}
    subject = Subject(name, seeded(build(name, WIDTH, {option: size, **extra})), WIDTH, frozenset())
    x, _ = inputs(subject, 1, 5, 1)
    whole = answer(subject, x, None, subject(x))
    agree(answer(subject, x, None, in_pieces(subject, x, None, (1, 2, 3, 4))), whole)


# 8. Optional parts left out ---------------------------------------------------------------------------------

#: arguments that are zero where they are left out
ZERO_IF_ABSENT = ("log_decay", "bias", "D", "dt_bias")


def optional(call: Inputs) -> list[str]:
    """Those of them that a call has."""
    return [name for name in ZERO_IF_ABSENT if call.tensors.get(name) is not None]


@each(lambda spec: [case for case in variety(spec, B=2, T=7) if optional(draw(spec, case))])
def test_08_no_gate_is_a_gate_of_zero(spec: OpSpec, row: Row, case: Case) -> None:
    call = double(draw(spec, case))
    for name in optional(call):
        if inspect.signature(spec.function).parameters[name].default is not None:
            continue  # it cannot be left out
        without = operator_answer(spec, row, changed(call, **{name: None}))
        zero = operator_answer(spec, row, changed(call, **{name: torch.zeros_like(call.tensors[name])}))
        close_all(without, {n: t for n, t in zero.items() if not n.endswith(f"/ d {name}")}, 1e-12)


# 9. A prompt continued with several tokens ------------------------------------------------------------------


@each(causal(B=2, T=10))
def test_09_a_prompt_and_its_continuation(spec: OpSpec, row: Row, case: Case) -> None:
    close_all(pieces(spec, row, double(draw(spec, case)), [5, 9]), exact_reference(spec, case))


@binds("cut anywhere")
def test_09_a_prompt_and_its_continuation_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 10, ROWS)
    agree(answer(subject, x, state, in_pieces(subject, x, state, [5, 9])), exact_whole(subject, 10))


# 10. Packing with more than one row -------------------------------------------------------------------------


@each_op
def test_10_packing_with_two_rows_is_refused(spec: OpSpec) -> None:
    call = draw(spec, variety(spec, B=2, T=7)[0])
    with pytest.raises(ShapeError, match="packed sequences need batch 1, got batch 2"):
        spec.function(**call.tensors, cu_seqlens=torch.tensor([0, 3, 7]))


def test_10_packing_with_two_rows_is_refused_in_layers(subject: Subject) -> None:
    with pytest.raises(ShapeError, match="packed sequences need batch 1, got batch 2"):
        subject(random(2, 7, subject.width), cu_seqlens=torch.tensor([0, 3, 7]))


# 11. Steps with and without optional parts ------------------------------------------------------------------


@each(causal(B=2, T=3))
def test_11_steps_with_any_optional_parts(spec: OpSpec, row: Row, case: Case) -> None:
    whole = double(draw(spec, case))
    parameters = inspect.signature(spec.function).parameters
    given = [n for n, t in whole.tensors.items() if t is not None and parameters[n].default is None]
    for left_out in itertools.chain.from_iterable(itertools.combinations(given, n) for n in range(len(given) + 1)):
        for state in (whole.state, None):
            call = changed(whole, **dict.fromkeys(left_out))._replace(state=state)
            close_all(pieces(spec, row, call, [1, 2]), operator_answer(spec, reference_row(spec), call))


@binds("cut anywhere")
def test_11_steps_of_layers_with_any_options(subject: Subject) -> None:
    x, start = inputs(subject, ROWS, 4, ROWS)
    outputs, state = [], start
    for token in x.unbind(1):
        output, state = subject.step(token, state)
        outputs.append(output)
    agree(answer(subject, x, start, (torch.stack(outputs, 1), state)), exact_whole(subject, 4))


# 12. An unknown keyword -------------------------------------------------------------------------------------


@each_op
def test_12_an_unknown_keyword_of_an_operator(spec: OpSpec) -> None:
    with pytest.raises(TypeError, match="use_exp2"):
        spec.function(**draw(spec, variety(spec, B=2, T=3)[0]).tensors, use_exp2=True)


def test_12_an_unknown_keyword_of_a_layer(subject: Subject) -> None:
    with pytest.raises(TypeError, match="attention_mask"):
        subject(random(2, 3, subject.width), attention_mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ALL)
def test_12_an_unknown_keyword_of_a_constructor(name: str) -> None:
    with pytest.raises(TypeError, match="use_exp2"):
        mixer_class(name, ALL)(WIDTH, use_exp2=True)


# 13. Left padding, through a convolution and its bias -------------------------------------------------------


def check_padded(subject: Subject, layout: str, lengths: tuple[int, ...] = (4, 1, 0)) -> None:
    x, state = inputs(subject, 1, sum(lengths), len(lengths))
    found = answer(subject, x, state, padded(subject, x, state, layouts(lengths)[layout], nan))
    agree(found, answer(subject, x, state, alone(subject, x, state, lengths)))


@pytest.mark.parametrize("layout", ["left", "left, wide"])
def test_13_left_padding_does_not_reach_the_state(subject: Subject, layout: str) -> None:
    module = copy.deepcopy(subject.module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.add_(1)
    check_padded(subject.on(module), layout)


# 14. Right padding, and what is read after it ---------------------------------------------------------------


@binds("cut anywhere")
@pytest.mark.parametrize("layout", ["right, wide", "right, then right", "right, then nothing, then left"])
def test_14_the_state_is_that_of_the_last_real_token(subject: Subject, layout: str) -> None:
    check_padded(subject, layout)


def test_14_a_masked_cache() -> None:
    spec = load_spec("attention")
    case = next(case for case in spec.cases if case.name == "mask")
    for row in rows(spec):
        call = double(draw(spec, resized(case, B=2, T=6)))
        first, second = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool(), torch.tensor([[1, 0, 0], [0, 1, 1]]).bool()
        mask = torch.cat([first, second], 1)
        split = pieces(spec, row, changed(call, token_mask=mask), [3])
        for b in range(2):
            alone = {n: t[b : b + 1, mask[b]] for n, t in call.tensors.items() if n != "token_mask"}
            state = select(call.state, torch.tensor([b]))
            output, final = run(spec, row, Inputs({**alone}, call.options, state))
            close("output", split["output"][b : b + 1, mask[b]], output, 1e-12)
            close("keys", split["state.keys"][b : b + 1, : final.keys.shape[1]], final.keys, 1e-12)
            assert split["state.seen"][b] == final.seen


# 15. State kept on the module -------------------------------------------------------------------------------


@binds("cut anywhere")
def test_15_two_sequences_in_turn(subject: Subject) -> None:
    a, start = inputs(subject, ROWS, 6, ROWS)
    b = random(ROWS, 6, subject.width, seed="another")
    with torch.no_grad():
        expected = values(*subject(a, start))
        first, state = subject(a[:, :3], start)
        subject(b, start)
        subject(b[:1], token_mask=torch.ones(1, 6, dtype=torch.bool))
        second, state = subject(a[:, 3:], state)
    agree(values(torch.cat([first, second], 1), state), expected)


# 16. Beams --------------------------------------------------------------------------------------------------


@each_model
def test_16_reordering_reaches_every_layer(model_subject: Subject) -> None:
    model = language_model(model_subject)
    prompts, mask = tokens_of(3, 6), torch.arange(6) < torch.tensor([[6], [4], [1]])
    with torch.no_grad():
        state = model(prompts, token_mask=mask).state
        order = torch.tensor([2, 0, 0, 1])
        beams = state.reorder(order)
        for (name, before), (_, after) in zip(named_leaves(state), named_leaves(beams), strict=True):
            assert torch.equal(after, before[order]), name
        layers = {name.split(".")[1] for name, _ in named_leaves(state) if name.startswith("layers")}
        assert layers == {str(i) for i in range(len(model.blocks))}
        following = tokens_of(4, 3, seed=1)
        logits, _ = model(following, state=beams)
        for i, row in enumerate(order.tolist()):
            alone = model(prompts[row : row + 1, : int(mask[row].sum())]).state
            expected, _ = model(following[i : i + 1], state=alone)
            agree({"beam": logits[i : i + 1]}, {"beam": expected}, 1e-12)


# 17. Which group a head reads -------------------------------------------------------------------------------

#: operator -> sizes of 4 heads in 2 groups, what is grouped, and the dimension of the heads in the output
GROUPED: dict[str, tuple[dict[str, int], tuple[str, ...], int]] = {
    "attention": ({"H": 4, "G": 2}, ("k", "v"), 2),
    "gated_linear": ({"H": 2, "HV": 4}, ("q", "k"), 2),
    "gated_delta": ({"H": 2, "HV": 4}, ("q", "k"), 2),
    "selective_scan": ({"D": 4, "G": 2}, ("B", "C"), 2),
}


def grouped(spec: OpSpec) -> list[Case]:
    """The cases of an operator in which something is grouped."""
    sizes, names, _ = GROUPED.get(spec.op, ({}, (), 0))
    cases = [resized(case, **sizes) for case in causal(B=1, T=5)(spec)] if names else []
    return [case for case in cases if any(draw(spec, case).tensors[name].ndim == 4 for name in names)]


@each(grouped)
def test_17_heads_read_their_own_group(spec: OpSpec, row: Row, case: Case) -> None:
    _, names, dim = GROUPED[spec.op]
    call = asking(spec, double(draw(spec, case)))
    output, _ = run(spec, row, call)
    for name in names:
        tensor = call.tensors[name]
        if tensor.ndim < 4:
            continue  # B or C without groups, beside the other with them
        for head in range(4):
            (gradient,) = torch.autograd.grad(output.select(dim, head).sum(), tensor, retain_graph=True)
            meets = gradient.abs().amax((0, 1, 3)) > 0
            assert meets.tolist() == [head // 2 == group for group in range(2)], f"head {head} and {name}"


def test_17_no_grouped_operator_is_forgotten() -> None:
    assert {spec.op for spec in SPECS if {"G", "HV"} & {*spec.cases[0].sizes}} == set(GROUPED)
    assert all(grouped(load_spec(op)) for op in GROUPED)


#: mixers of 4 heads in 2 groups, and the rows of a projection that make keys of the groups
GROUPED_MIXERS: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "attention": ({"heads": 4, "kv_heads": 2}, "k_proj", 0, 4),
    "gated_deltanet": ({"heads": 2, "value_heads": 4, "key_dim": 3, "value_dim": 4}, "qkv_proj", 6, 3),
    "mamba2": ({"inner": 16, "head_dim": 4, "groups": 2, "state_size": 3}, "in_proj", 32, 3),
}


@pytest.mark.parametrize("name", GROUPED_MIXERS)
def test_17_heads_of_layers_read_their_own_group(name: str) -> None:
    options, projection, start, size = GROUPED_MIXERS[name]
    mixer = seeded(build(name, WIDTH, options))
    seen: list[Tensor] = []
    mixer.out_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    mixer(random(1, 6, WIDTH))
    for head in range(4):
        (gradient,) = torch.autograd.grad(
            seen[0][..., 4 * head : 4 * head + 4].square().sum(), getattr(mixer, projection).weight, retain_graph=True
        )
        meets = [bool(gradient[start + size * group : start + size * (group + 1)].any()) for group in range(2)]
        assert meets == [head // 2 == group for group in range(2)], f"head {head}"


# 18. Limits of Δ --------------------------------------------------------------------------------------------


@each_row("selective_scan")
@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4]], ids=["at once", "by steps"])
def test_18_steps_beyond_the_limits_are_the_limits(row: Row, cuts: list[int]) -> None:
    spec = load_spec("selective_scan")
    case = next(case for case in variety(spec, T=5) if not case.options["dt_softplus"])
    call = double(draw(spec, case))
    dt = torch.tensor([0.0, 0.2, 0.5, 1.0, 7.0], dtype=torch.float64)[None, :, None].expand_as(call.tensors["dt"])
    limited = changed(call, dt=dt)._replace(options={**call.options, "dt_limit": (0.3, 0.9)})
    got = pieces(spec, row, limited, cuts)
    expected = pieces(spec, row, changed(call, dt=dt.clamp(0.3, 0.9)), cuts)
    for name in ("output", "state", "d output / d x", "d output / d A", "d state / d B"):
        close(name, got[name], expected[name], 1e-12)
    beyond = torch.tensor([True, True, False, True, True])
    assert not got["d output / d dt"][:, beyond].any()
    assert got["d output / d dt"][:, ~beyond].any()


@pytest.mark.parametrize("raw", [-20.0, 20.0], ids=["below", "above"])
def test_18_limits_of_a_layer(raw: float) -> None:
    limits = (0.2, 0.7)
    options = {"head_dim": 4, "state_size": 3}
    limited = seeded(build("mamba2", WIDTH, {**options, "dt_limit": limits}))
    free = seeded(build("mamba2", WIDTH, options))
    free.load_state_dict(limited.state_dict())
    edge = limits[raw > 0]
    with torch.no_grad():
        limited.dt_bias.fill_(raw)
        free.dt_bias.fill_(edge + math.log(-math.expm1(-edge)))  # softplus of it is the limit
        free.in_proj.weight[-free.heads :] = 0
    x = random(ROWS, 6, WIDTH)
    expected = values(*free(x))
    agree(values(*limited(x)), expected)
    subject = Subject("limited", limited, WIDTH, frozenset())
    agree(values(*in_pieces(subject, x, None, (1, 2, 3, 4, 5))), expected)


# 19. A state rounded at every step --------------------------------------------------------------------------


def state_by_steps(spec: OpSpec, row: Row, call: Inputs, tokens: int) -> Any:
    state = call.state
    with torch.no_grad():
        for t in range(tokens):
            _, state = run(spec, row, piece(spec, call, t, t + 1, state))
    return state


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@each(lambda spec: variety(spec, B=1, T=12) if spec.state_shapes is not None else [])
def test_19_steps_in_half_precision_round_no_state(spec: OpSpec, row: Row, case: Case, dtype: torch.dtype) -> None:
    half = draw(spec, case, dtype)
    wide = mapped(half, lambda t: t.float() if t.is_floating_point() else t)
    got, expected = (dict(named_leaves(state_by_steps(spec, row, call, 12))) for call in (half, wide))
    close_all(got, expected, 1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@binds("constant memory", only=stateful)
def test_19_states_of_layers_are_wide(subject: Subject, dtype: torch.dtype) -> None:
    half = subject.on(narrowed(subject, dtype))
    state = half.module.init_state(1)
    with torch.no_grad():
        for t in range(20):
            _, state = half.step(random(1, subject.width, seed=t, dtype=dtype), state)
    found = recurrent(state)
    assert {t.dtype for t in found} <= {torch.float32, torch.complex64, torch.int64}
    memories = [t for name, t in named_leaves(state) if name.split(".")[-1] in ("memory", "ssm")]
    for memory in memories:
        real = torch.view_as_real(memory) if memory.is_complex() else memory
        assert (real != real.to(dtype).float()).any(), "the state was rounded"


# 20. The future, over the boundaries of chunks --------------------------------------------------------------


@each(lambda spec: [c for c in variety(spec, B=1, T=130) if bound(spec, c, "the past cannot see the future")])
def test_20_a_later_chunk_changes_nothing(spec: OpSpec, row: Row, case: Case) -> None:
    call, other = double(draw(spec, case)), double(draw(spec, case, seed=1))
    output, _ = run(spec, row, call)
    for t in (63, 64, 65, 127, 128):
        token = {n: call.tensors[n].clone() for n in timed_names(spec, call)}
        for name, tensor in token.items():
            tensor[:, t:] = other.tensors[name][:, t:]
        got, _ = run(spec, row, changed(call, **token))
        close(f"before {t}", got[:, :t], output[:, :t], 1e-14)
        assert not torch.equal(got[:, t:], output[:, t:])


@binds("the past cannot see the future")
def test_20_a_later_chunk_changes_nothing_in_layers(subject: Subject) -> None:
    x = random(1, 130, subject.width).requires_grad_()
    output, _ = subject(x)
    for t in (63, 64, 65, 127, 128):
        up = upstream(output[:, :t].shape, x.dtype, torch.float32)
        (gradient,) = torch.autograd.grad(output[:, :t], x, up, retain_graph=True)
        assert gradient[:, t:].abs().max() <= 1e-14 * gradient.abs().max()


# 21. Documents packed for training --------------------------------------------------------------------------


@each_model
def test_21_packed_documents_train_as_if_alone(model_subject: Subject) -> None:
    loss = BatchLoss(language_model(model_subject))
    documents = [tokens_of(1, length, seed=length) for length in (5, 1, 9)]
    pairs = [(d, d.roll(-1, 1)) for d in documents]

    def batch(tokens: Tensor, targets: Tensor, bounds: list[int]) -> Batch:
        return Batch(tokens, targets, torch.ones(tokens.shape), cu_seqlens=torch.tensor(bounds))

    parameters = dict(loss.named_parameters())

    def gradients(total: Tensor) -> dict[str, Tensor]:
        found = torch.autograd.grad(total, list(parameters.values()))
        return {"loss": total.detach(), **dict(zip(parameters, found, strict=True))}

    together = loss(batch(*(torch.cat(part, 1) for part in zip(*pairs, strict=True)), [0, 5, 6, 15]), None)[0]
    apart = sum(loss(batch(*pair, [0, pair[0].shape[1]]), None)[0] for pair in pairs)
    agree(gradients(together), gradients(apart))


# 22. Half precision -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@each(lambda spec: variety(spec, B=2, T=7))
def test_22_half_precision(spec: OpSpec, row: Row, case: Case, dtype: torch.dtype) -> None:
    call = draw(spec, case, dtype)
    got = operator_answer(spec, row, call, dtype)
    check_all(got, *references(spec, case, call, dtype))
    assert got["output"].dtype == dtype
    for name, tensor in named_inputs(asking(spec, call)).items():
        assert got[f"d output / d {name}"].dtype == tensor.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_22_half_precision_in_layers(subject: Subject, dtype: torch.dtype) -> None:
    half = subject.on(narrowed(subject, dtype))
    x = random(ROWS, 7, subject.width, dtype=dtype).requires_grad_()
    found = answer(half, x, None, half(x))
    assert found["output"].dtype == dtype
    for name, tensor in {"x": x, **dict(half.module.named_parameters())}.items():
        assert found[f"d output / d {name}"].dtype == tensor.dtype
    for name, tensor in found.items():
        assert dtype == torch.float16 or torch.isfinite(tensor).all(), f"{name} is not finite"
