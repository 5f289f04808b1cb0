"""Kernels as operators of torch: torch checks their registration, compiles and exports what calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lavagna.errors import BackendError
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.ops.spec import Case, Inputs, OpSpec
from lavagna.ops.tree import leaves

from ..support.operators import asking, draw, few, named_inputs, packed, run, variety
from .support import NATIVE, native_row, prints

EACH = pytest.mark.parametrize("spec", NATIVE, ids=lambda spec: spec.op)

Arguments = tuple[Any, ...]


class Recorded(TorchDispatchMode):
    """The calls of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Callable[..., Any], list[Arguments]]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "lavagna":
            name = function.name().partition("::")[2]
            copies = tuple(a.clone() if isinstance(a, Tensor) else a for a in args)
            self.calls.setdefault(name, (function, []))[1].append(copies)
        return function(*args, **(kwargs or {}))


def record() -> dict[str, tuple[Callable[..., Any], list[Arguments]]]:
    """Calls of our operators in every way: from the specs, and by models of every mixer that train and generate."""
    with Recorded() as recorded:
        for spec in NATIVE:
            for case in (*few(spec, B=2, T=5), *few(spec, B=2, T=1)):
                inputs = asking(spec, draw(spec, case))
                result = run(spec, native_row(spec), inputs)
                results = [t for t in leaves(result) if t.requires_grad]
                torch.autograd.grad(results, list(named_inputs(inputs).values()), [torch.ones_like(t) for t in results])
            several, bounds = packed(spec, variety(spec)[0], (3, 0, 2))
            run(spec, native_row(spec), several, cu_seqlens=bounds)
        for name in MIXERS:
            model = LanguageModel(LanguageModelConfig(vocab_size=7, width=16, layers=(name,)), seed=0)
            tokens = torch.ones(2, 3, dtype=torch.int64)
            model(tokens).logits.sum().backward()
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    model(tokens[:, :1], state=model(tokens).state)
    return recorded.calls


def test_torch_finds_no_fault_in_their_registration() -> None:
    calls = record()
    operators = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if "lavagna::" in name}
    for name in operators - set(calls):  # steps in place, which take what the whole sequence takes
        function = getattr(torch.ops.lavagna, name).default
        calls[name] = function, in_place(function, *calls[name.removesuffix("_step_")])
    for name, (function, each) in calls.items():
        assert each, f"no call of {name} was seen"
        differentiable = f"{name}_backward" in calls
        for arguments in _different(each):
            asked = tuple(
                a.requires_grad_(differentiable and a.is_floating_point()) if isinstance(a, Tensor) else a
                for a in arguments
            )
            torch.library.opcheck(function, asked)


def in_place(step: Any, whole: Any, calls: list[Arguments]) -> list[Arguments]:
    """Calls of a step from those of the operator on sequences of one token, by the names of the arguments."""
    named = [{a.name: value for a, value in zip(whole._schema.arguments, call, strict=True)} for call in calls]
    single = [call for call in named if next(iter(call.values())).shape[1] == 1 and call["bounds"] is None]
    return [tuple(call[argument.name] for argument in step._schema.arguments) for call in single]


def _different(calls: list[Arguments]) -> list[Arguments]:
    """One call for each combination of ranks, of what is absent and of plain values."""
    chosen: dict[tuple[Any, ...], Arguments] = {}
    for arguments in calls:
        chosen.setdefault(tuple((a.ndim, a.dtype) if isinstance(a, Tensor) else a for a in arguments), arguments)
    return list(chosen.values())


@EACH
def test_differentiating_twice_is_refused(spec: OpSpec) -> None:
    inputs = asking(spec, draw(spec, few(spec, B=1, T=3)[0]))
    output = run(spec, native_row(spec), inputs).output
    named = named_inputs(inputs)
    once = torch.autograd.grad(output.square().sum(), list(named.values()), create_graph=True)
    with pytest.raises(BackendError, match=r"has no derivative; impl='torch' can be differentiated more than once"):
        torch.autograd.grad(sum(g.square().sum() for g in once), list(named.values()))


def flattened(spec: OpSpec, inputs: Inputs) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """The call as a function of its differentiable tensors."""
    named = {name: t for name, t in inputs.tensors.items() if t is not None}

    def function(*tensors: Tensor) -> Tensor:
        given = dict(zip(named, tensors, strict=True))
        return 2 * spec.function(**given, **inputs.options, state=inputs.state).output

    return function, list(named.values())


@EACH
def test_a_call_is_compiled_into_one_graph(spec: OpSpec) -> None:
    torch._dynamo.reset()
    inputs = asking(spec, draw(spec, few(spec, B=2, T=9)[0]))
    function, tensors = flattened(spec, inputs)
    wanted = [t for t in tensors if t.requires_grad]
    found = torch.compile(function, fullgraph=True, backend="aot_eager")(*tensors)
    expected = function(*tensors)
    assert torch.equal(found, expected)
    for got, same in zip(
        torch.autograd.grad(found.sum(), wanted), torch.autograd.grad(expected.sum(), wanted), strict=True
    ):
        torch.testing.assert_close(got, same)


@EACH
def test_a_call_is_exported(spec: OpSpec) -> None:
    function, tensors = flattened(spec, draw(spec, few(spec, B=2, T=9)[0]))

    class Module(nn.Module):
        def forward(self, *tensors: Tensor) -> Tensor:
            return function(*tensors)

    exported = torch.export.export(Module(), tuple(tensors))
    names = {str(node.target) for node in exported.graph.nodes}
    assert any(name.startswith("lavagna.") for name in names), names
    assert torch.equal(exported.module()(*tensors), function(*tensors))


#: one mixer for each operator that has kernels, and one without
COMPILED = ("mamba", "mamba2", "gated_deltanet", "attention")


@pytest.mark.parametrize("name", COMPILED)
def test_a_model_is_compiled_in_a_fresh_process(name: str) -> None:
    """Nothing was imported or loaded by an earlier call."""
    printed = prints(
        f"""
        from lavagna.models import LanguageModel, LanguageModelConfig
        model = LanguageModel(LanguageModelConfig(vocab_size=17, width=16, layers=({name!r},)), seed=0)
        tokens = torch.arange(18).remainder(17).view(2, 9)
        torch.compile(lambda tokens: model(tokens).logits, fullgraph=True, backend="aot_eager")(tokens).sum().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(tokens).logits.sum().backward()
        for got, p in zip(found, model.parameters()):
            torch.testing.assert_close(got, p.grad)
        print("done")
        """
    )
    assert printed == "done\n"


@pytest.mark.parametrize("name", COMPILED)
def test_a_model_is_exported(name: str) -> None:
    model = LanguageModel(LanguageModelConfig(vocab_size=17, width=16, layers=(name,)), seed=0)
    tokens = torch.arange(18).remainder(17).view(2, 9)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens: Tensor) -> Tensor:
            return self.model(tokens).logits

    with torch.no_grad():
        exported = torch.export.export(Logits(), (tokens,))
        torch.testing.assert_close(exported.module()(tokens), model(tokens).logits)


@EACH
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_promotes_to_float32_inside(spec: OpSpec, half: torch.dtype) -> None:
    """The rule, with autocast or without: sums in float32 (float64 if an input is), output in its input's dtype."""
    case: Case = few(spec, B=2, T=9)[0]
    with torch.autocast("cpu", dtype=half):
        single = run(spec, native_row(spec), draw(spec, case))
        low = run(spec, native_row(spec), draw(spec, case, half))
    assert single.output.dtype == torch.float32
    assert torch.equal(single.output, run(spec, native_row(spec), draw(spec, case)).output)
    assert low.output.dtype == half
    assert {t.dtype for t in leaves(low.state)} == {torch.float32}
