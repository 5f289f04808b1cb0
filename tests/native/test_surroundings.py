"""What a caller may have set up around a call: a native kernel answers as the portable path does, or refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from lavagna.errors import BackendError, ShapeError
from lavagna.mixers.parts.norms import RMSNorm
from lavagna.ops import gated_delta, gated_linear, selective_scan
from lavagna.ops.rms_norm import rms_norm
from lavagna.ops.skinny_linear import linear
from lavagna.ops.spec import Case, OpSpec

from ..support.operators import draw, few, resized
from .support import NATIVE, prints

EACH = pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.op)
CASES = pytest.mark.parametrize(
    ("spec", "case"),
    [pytest.param(spec, case, id=f"{spec.op}-{case.name}") for spec in NATIVE for case in few(spec, B=2)],
)


#: the chunks of this one have a backward of their own, which transforms cannot follow
PORTABLE: dict[str, dict[str, str]] = {"selective_scan": {"form": "recurrent"}}


def call(spec: OpSpec, tensors: dict[str, Any], inputs: Any, impl: str, **more: Any) -> Any:
    return spec.function(**tensors, **inputs.options, state=inputs.state, return_state=True, impl=impl, **more)


def is_finite(result: Any) -> bool:
    parts = [result.output, *(result.state if isinstance(result.state, tuple) else [result.state])]
    return all(bool(part.isfinite().all()) for part in parts)


@CASES
def test_a_nan_comes_out(spec: OpSpec, case: Case) -> None:
    """A run that has diverged must not look healthy."""
    inputs = draw(spec, resized(case, T=20))
    forms = dict.fromkeys(row.form for row in spec.table.rows if row.impl == "cpu")
    assert all(is_finite(call(spec, inputs.tensors, inputs, "cpu", form=form)) for form in forms)
    for name, tensor in inputs.tensors.items():
        if tensor is None:
            continue
        spoilt = tensor.detach().clone()
        spoilt.flatten()[spoilt.numel() // 3] = float("nan")
        for form in forms:
            result = call(spec, {**inputs.tensors, name: spoilt}, inputs, "cpu", form=form)
            assert not is_finite(result), (name, form)


@EACH
def test_a_default_device_is_not_theirs(spec: OpSpec) -> None:
    """Boundaries of packed sequences are read by the processor, wherever new tensors go."""
    inputs = draw(spec, resized(spec.cases[0], B=1, T=9))._replace(state=None)
    bounds = torch.tensor([0, 4, 9])
    expected = call(spec, inputs.tensors, inputs, "cpu", cu_seqlens=bounds)
    with torch.device("meta"):
        got = call(spec, inputs.tensors, inputs, "cpu", cu_seqlens=bounds)
    torch.testing.assert_close(got.output, expected.output, rtol=0, atol=0)


@EACH
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own, where it makes tangents
@pytest.mark.parametrize("recorded", [True, False])
def test_forward_derivatives_are_refused_or_portable(spec: OpSpec, recorded: bool) -> None:
    inputs = draw(spec, resized(spec.cases[0], B=1, T=3))
    name, tensor = next(iter(inputs.tensors.items()))
    assert tensor is not None
    with torch.set_grad_enabled(recorded):
        call(spec, inputs.tensors, inputs, "auto")  # a call to remember
        with forward_ad.dual_level():
            dual = {**inputs.tensors, name: forward_ad.make_dual(tensor.detach(), torch.ones_like(tensor))}
            tangents = [
                forward_ad.unpack_dual(call(spec, dual, inputs, impl, **PORTABLE.get(spec.op, {})).output).tangent
                for impl in ("auto", "torch")
            ]
            assert tangents[1].abs().sum() > 0
            torch.testing.assert_close(*tangents, rtol=0, atol=0)
            with pytest.raises(BackendError, match="derivatives for backward alone"):
                call(spec, dual, inputs, "cpu")


@EACH
def test_transforms_of_functions_go_the_portable_way(spec: OpSpec) -> None:
    inputs = draw(spec, resized(spec.cases[0], B=1, T=3))
    name, tensor = next(iter(inputs.tensors.items()))

    def loss(x: Tensor, impl: str) -> Tensor:
        return call(spec, {**inputs.tensors, name: x}, inputs, impl, **PORTABLE.get(spec.op, {})).output.square().sum()

    auto, portable = (torch.func.grad(loss)(tensor, impl) for impl in ("auto", "torch"))
    torch.testing.assert_close(auto, portable, rtol=0, atol=0)
    with pytest.raises(BackendError, match=r"those of torch\.func"):
        torch.func.grad(loss)(tensor, "cpu")


@EACH
def test_a_memory_of_negatives_is_read_as_such(spec: OpSpec) -> None:
    inputs = draw(spec, resized(spec.cases[0], T=1))
    name, tensor = next(iter(inputs.tensors.items()))
    assert tensor is not None
    with torch.no_grad():
        for _ in range(2):  # the second time as remembered
            expected = call(spec, {**inputs.tensors, name: -tensor}, inputs, "cpu")
            got = call(spec, {**inputs.tensors, name: torch._neg_view(tensor)}, inputs, "cpu")
            torch.testing.assert_close(got.output, expected.output, rtol=0, atol=0)
        x, weight = torch.randn(1, 8), torch.randn(5, 8)
        torch.testing.assert_close(linear(torch._neg_view(x), weight), linear(-x, weight), rtol=0, atol=0)


@EACH
def test_gradients_in_batches(spec: OpSpec) -> None:
    inputs = draw(spec, resized(spec.cases[0], B=1, T=5))
    name, tensor = next(iter(inputs.tensors.items()))
    assert tensor is not None
    x = tensor.detach().clone().requires_grad_()
    output = call(spec, {**inputs.tensors, name: x}, inputs, "cpu").output
    ups = torch.randn(3, *output.shape)
    (batch,) = torch.autograd.grad(output, x, ups, is_grads_batched=True, retain_graph=True)
    for up, together in zip(ups, batch, strict=True):
        (alone,) = torch.autograd.grad(output, x, up, retain_graph=True)
        torch.testing.assert_close(together, alone, rtol=0, atol=0)


def step_arguments() -> tuple[Tensor, tuple[Any, ...]]:
    q, k, v, beta = (torch.rand(1, 1, 1, 4) for _ in range(4))
    return torch.zeros(1, 1, 4, 4), (q, k, v, beta[..., 0], None, False, 1.0)


def test_a_step_in_place_tells_torch_what_it_overwrote() -> None:
    state, arguments = step_arguments()
    weight = torch.ones_like(state, requires_grad=True)
    loss = (state * weight).sum()
    with torch.no_grad():
        torch.ops.lavagna.gated_delta_step_(state, *arguments)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_step_in_place_has_no_gradients() -> None:
    state, (q, *rest) = step_arguments()
    for own, query in ((state, q.requires_grad_()), (state.clone().requires_grad_(), q.detach())):
        with pytest.raises(BackendError, match="expected inputs that do not require gradients"):
            torch.ops.lavagna.gated_delta_step_(own, query, *rest)


@pytest.mark.parametrize(
    "variables", [{"OMP_DYNAMIC": "true"}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_MAX_ACTIVE_LEVELS": "0"}]
)
def test_fewer_threads_than_were_asked_for_do_all_of_the_work(variables: dict[str, str]) -> None:
    code = "print([round(float(t.double().abs().sum()), 3) for op in OPS for t in call(op)])"
    assert prints(code, **variables) == prints(code)


@pytest.mark.parametrize(
    ("shape", "weight", "gate"),
    [
        ((24,), (16,), None),
        ((2, 3, 8), (16,), None),
        ((2, 3, 8), (3, 4), None),
        ((2, 3, 8), (8,), (1, 1, 8)),
        ((8,), (), None),
    ],
)
@pytest.mark.parametrize("recorded", [True, False])
def test_a_norm_refuses_what_does_not_fit(shape: Any, weight: Any, gate: Any, recorded: bool) -> None:
    with torch.set_grad_enabled(recorded), pytest.raises(ShapeError, match=r"^rms_norm: (weight|gate) must"):
        rms_norm(torch.ones(shape), torch.ones(weight), None if gate is None else torch.ones(gate))


def test_a_norm_refuses_other_dtypes_and_devices() -> None:
    with pytest.raises(ShapeError, match=r"x must be float32 or float64, got torch\.bfloat16"):
        rms_norm(torch.ones(4, 8).bfloat16(), torch.ones(8))
    with pytest.raises(ShapeError, match="expected all tensors on one device"):
        rms_norm(torch.ones(4, 8), torch.ones(8, device="meta"))
    with pytest.raises(ShapeError, match="weight must be"):
        RMSNorm(16, eps=1e-5)(torch.randn(2, 3, 8))


def test_a_bias_that_is_not_one_per_output_is_left_to_torch() -> None:
    with torch.no_grad():
        x, weight, bias = torch.randn(1, 8), torch.randn(5, 8), torch.randn(1)
        torch.testing.assert_close(linear(x, weight, bias), torch.nn.functional.linear(x, weight, bias), rtol=0, atol=0)
        with pytest.raises(RuntimeError, match="device"):
            linear(x, weight, torch.randn(5, device="meta"))


@pytest.mark.parametrize("impl", ["auto", "cpu", "torch", "reference"])
@pytest.mark.parametrize("letter", ["H", "HV", "K", "V"])
def test_empty_heads_are_refused(letter: str, impl: str) -> None:
    sizes = {"H": 2, "HV": 2, "K": 4, "V": 4, letter: 0}
    q, v = torch.rand(1, 3, sizes["H"], sizes["K"]), torch.rand(1, 3, sizes["HV"], sizes["V"])
    for op, more in ((gated_linear, ()), (gated_delta, (v[..., :1].sum(-1),))):
        with pytest.raises(ShapeError, match=f"{letter} must be at least 1, got {letter}=0"):
            op(q, q, v, *more, impl=impl)  # type: ignore[operator]


@pytest.mark.parametrize("letter", ["D", "N"])
def test_empty_channels_are_refused(letter: str) -> None:
    sizes = {"D": 2, "N": 2, letter: 0}
    x, A, B = torch.rand(1, 3, sizes["D"]), -torch.rand(sizes["D"], sizes["N"]), torch.rand(1, 3, sizes["N"])
    with pytest.raises(ShapeError, match=f"selective_scan: {letter} must be at least 1"):
        selective_scan(x, x, A, B, B)
