"""Faults that people met in layers of other projects: the right value of every mixer of ours, forward and backward.

Each once for each mixer that it could touch; tests/mixers/test_conformance.py has all options.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import ShapeError
from lavagna.mixers.parts.norms import HeadNorm
from lavagna.mixers.registry import MIXERS, build, mixer_class, option_types
from lavagna.ops.tree import leaves, named_leaves

from ..support.budget import close
from ..support.conformance import binds, nan, narrowed, parametrize, recurrent, stateful
from ..support.contracts import (
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
from ..support.operators import upstream
from ..support.subjects import ALL, DEFAULTS, MIXER_SUBJECTS, seeded
from ..support.upstreams import check_upstreams
from ..support.variants import WIDTH


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests with a `subject` run on every mixer and MLP that they bind."""
    parametrize(metafunc, DEFAULTS, lambda subject: True)


#: dtypes of half precision
HALF = (torch.bfloat16, torch.float16)


# 1. Strong decay: overflow, or the state lost ----------------------------------------------------------------

#: parameters that set how fast a memory fades, and a value with which it forgets everything at once
FORGETS = {"A_log": 9.2, "A_log_real": 9.2, "decay": 9.2, "decay_proj.up.bias": -1.6e5}


def forgets(subject: Subject) -> frozenset[str]:
    """Those of these parameters that a mixer has."""
    names = [name for name, _ in subject.module.named_parameters()]
    return frozenset(ending for ending in FORGETS if any(name.endswith(ending) for name in names))


#: one mixer of each name and set of such parameters
FORGETTING = {(s.name.split("-")[0], forgets(s)): s for s in reversed(MIXER_SUBJECTS) if forgets(s)}.values()


@pytest.mark.parametrize("forgetting", FORGETTING, ids=lambda subject: subject.name)
def test_01_memories_that_forget_beside_memories_that_keep(forgetting: Subject) -> None:
    subject, module = forgetting, narrowed(forgetting, torch.float32)
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


# 2. Packed neighbours in each other's gradients --------------------------------------------------------------


@binds(only=stateful)
def test_02_gradients_of_packed_sequences_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, 1, 5, 2)
    found = answer(subject, x, state, subject(x, state, cu_seqlens=torch.tensor([0, 2, 5])))
    agree(found, answer(subject, x, state, alone(subject, x, state, (2, 3))))


# 3. A norm of two groups -------------------------------------------------------------------------------------


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


# 6. Upstream gradients that are expanded or not contiguous ---------------------------------------------------


def test_06_gradients_of_any_strides_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, 2, 7, 2)
    output, final = subject(x, state)
    check_upstreams([output, *leaves(final)], {"x": x, **dict(subject.module.named_parameters())})


# 7. Head sizes that fill no block ----------------------------------------------------------------------------

#: options that set the size of a head
HEAD_SIZES = ("key_dim", "value_dim", "head_dim", "state_size")
HEADS = [(name, option) for name in MIXERS for option in option_types(mixer_class(name)).model_fields]
HEADS = [(name, option) for name, option in HEADS if option in HEAD_SIZES]


@pytest.mark.parametrize(("name", "option", "size"), [(*head, (48, 60, 100)[i % 3]) for i, head in enumerate(HEADS)])
def test_07_layers_with_such_heads(name: str, option: str, size: int) -> None:
    extra = {"inner": 2 * size} if (name, option) == ("mamba2", "head_dim") else {}
    subject = Subject(name, seeded(build(name, WIDTH, {option: size, **extra})), WIDTH, frozenset())
    x, _ = inputs(subject, 1, 5, 1)
    whole = answer(subject, x, None, subject(x))
    agree(answer(subject, x, None, in_pieces(subject, x, None, (1, 2, 3, 4))), whole)


# 9. A prompt continued with several tokens -------------------------------------------------------------------


@binds("cut anywhere", only=stateful)
def test_09_a_prompt_and_its_continuation_in_layers(subject: Subject) -> None:
    x, state = inputs(subject, ROWS, 10, ROWS)
    agree(answer(subject, x, state, in_pieces(subject, x, state, [5, 9])), exact_whole(subject, 10))


# 10. Packing with more than one row --------------------------------------------------------------------------


def test_10_packing_with_two_rows_is_refused_in_layers(subject: Subject) -> None:
    with pytest.raises(ShapeError, match="packed sequences need batch 1, got batch 2"):
        subject(random(2, 7, subject.width), cu_seqlens=torch.tensor([0, 3, 7]))


# 11. Steps with and without optional parts -------------------------------------------------------------------


@pytest.mark.parametrize("name", MIXERS)
def test_11_steps_of_layers_with_any_options(name: str) -> None:
    for subject in (s for s in MIXER_SUBJECTS if s.name.split("-")[0] == name and "cut anywhere" not in s.excepted):
        x, start = inputs(subject, ROWS, 4, ROWS)
        outputs, state = [], start
        for token in x.unbind(1):
            output, state = subject.step(token, state)
            outputs.append(output)
        agree(answer(subject, x, start, (torch.stack(outputs, 1), state)), exact_whole(subject, 4))


# 12. An unknown keyword --------------------------------------------------------------------------------------


def test_12_an_unknown_keyword_of_a_layer(subject: Subject) -> None:
    with pytest.raises(TypeError, match="attention_mask"):
        subject(random(2, 3, subject.width), attention_mask=torch.ones(2, 3, dtype=torch.bool))


@pytest.mark.parametrize("name", ALL)
def test_12_an_unknown_keyword_of_a_constructor(name: str) -> None:
    with pytest.raises(TypeError, match="use_exp2"):
        mixer_class(name, ALL)(WIDTH, use_exp2=True)


# 13. Left padding, through a convolution and its bias --------------------------------------------------------


def check_padded(subject: Subject, layout: str, lengths: tuple[int, ...] = (4, 1, 0)) -> None:
    x, state = inputs(subject, 1, sum(lengths), len(lengths))
    found = answer(subject, x, state, padded(subject, x, state, layouts(lengths)[layout], nan))
    agree(found, answer(subject, x, state, alone(subject, x, state, lengths)))


@binds(only=stateful)
def test_13_left_padding_does_not_reach_the_state(subject: Subject) -> None:
    module = copy.deepcopy(subject.module)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.add_(1)
    check_padded(subject.on(module), "left, wide")


# 14. Right padding, and what is read after it ----------------------------------------------------------------


@binds("cut anywhere", only=stateful)
def test_14_the_state_is_that_of_the_last_real_token(subject: Subject) -> None:
    check_padded(subject, "right, wide")
    check_padded(subject, "right, then nothing, then left")


# 15. State kept on the module --------------------------------------------------------------------------------


@binds("cut anywhere", only=stateful)
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


# 17. Which group a head reads --------------------------------------------------------------------------------

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


# 18. Limits of Δ ---------------------------------------------------------------------------------------------


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


# 19. A state rounded at every step ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF, ids=["bfloat16", "float16"])
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


# 20. The future, over the boundaries of chunks ---------------------------------------------------------------


@binds("the past cannot see the future", only=stateful)
def test_20_a_later_chunk_changes_nothing_in_layers(subject: Subject) -> None:
    x = random(1, 130, subject.width).requires_grad_()
    output, _ = subject(x)
    for t in (63, 64, 65, 127, 128):
        up = upstream(output[:, :t].shape, x.dtype, torch.float32)
        (gradient,) = torch.autograd.grad(output[:, :t], x, up, retain_graph=True)
        assert gradient[:, t:].abs().max() <= 1e-14 * gradient.abs().max()


# 22. Half precision ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALF, ids=["bfloat16", "float16"])
def test_22_half_precision_in_layers(subject: Subject, dtype: torch.dtype) -> None:
    half = subject.on(narrowed(subject, dtype))
    x = random(ROWS, 7, subject.width, dtype=dtype).requires_grad_()
    found = answer(half, x, None, half(x))
    assert found["output"].dtype == dtype
    for name, tensor in {"x": x, **dict(half.module.named_parameters())}.items():
        assert found[f"d output / d {name}"].dtype == tensor.dtype
    for name, tensor in found.items():
        assert torch.isfinite(tensor).all(), f"{name} is not finite"
