"""Kernels whose products are made of bfloat16 numbers, where torch is told that those of float32 may be.

The contracts of these kernels as they are otherwise are in test_conformance.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lavagna import native
from lavagna.ops.dispatch import Row
from lavagna.ops.spec import Case, OpSpec, load_spec

from ..native.support import prints
from ..support.budget import check_all
from ..support.operators import (
    Answer,
    answer,
    double,
    draw,
    exact_alone,
    few,
    mapped,
    packed,
    references,
    resized,
    rows,
    variety,
)

SPECS = [load_spec(name) for name in ("gated_delta", "gated_linear")]
LENGTHS = (0, 1, 70, 0, 3, 2, 66, 0)


def each(cases: object) -> pytest.MarkDecorator:
    """Each of some cases of both operators, on the kernels that have products."""
    assert callable(cases)
    parameters = [pytest.param(spec, case, id=f"{spec.op}-{case.name}") for spec in SPECS for case in cases(spec)]
    return pytest.mark.parametrize(("spec", "case"), parameters)


def row_of(spec: OpSpec, form: str = "chunk") -> Row:
    (row,) = (row for row in rows(spec) if (row.impl, row.form) == ("cpu", form))
    return row


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def at(precision: str, spec: OpSpec, case: Case, form: str = "chunk", dtype: torch.dtype = torch.float32) -> Answer:
    torch.set_float32_matmul_precision(precision)
    inputs = draw(spec, case)
    return answer(spec, row_of(spec, form), double(inputs) if dtype == torch.float64 else inputs)


def same_bits(a: Answer, b: Answer) -> bool:
    return all(torch.equal(a[name], b[name]) for name in b)


# Errors ----------------------------------------------------------------------------------------------------


@each(lambda spec: spec.cases)
def test_the_answer_is_as_good_as_bfloat16_allows(spec: OpSpec, case: Case) -> None:
    """Outputs, states and every gradient: extremes of decay, β up to 2, all sizes, lengths and options."""
    inputs = draw(spec, case)
    check_all(at("medium", spec, case), *references(spec, case, inputs), torch.bfloat16)


@each(lambda spec: variety(spec, T=40))
def test_inputs_in_bfloat16(spec: OpSpec, case: Case) -> None:
    torch.set_float32_matmul_precision("medium")
    inputs = draw(spec, case, torch.bfloat16)
    got = answer(spec, row_of(spec), inputs, torch.bfloat16)
    check_all(got, *references(spec, case, inputs, torch.bfloat16), torch.bfloat16)


@each(few)
def test_packed_sequences(spec: OpSpec, case: Case) -> None:
    torch.set_float32_matmul_precision("medium")
    inputs, bounds = packed(spec, case, LENGTHS)
    got = answer(spec, row_of(spec), mapped(inputs, lambda t: t.float()), cu_seqlens=bounds)
    exact = exact_alone(spec, case, LENGTHS)
    check_all(got, {name: t.float() for name, t in exact.items()}, exact, torch.bfloat16)


# When ------------------------------------------------------------------------------------------------------


@each(lambda spec: variety(spec, B=1, T=70, K=40, V=33))
def test_only_medium_changes_bits_and_only_where_the_processor_has_the_products(spec: OpSpec, case: Case) -> None:
    highest = at("highest", spec, case)
    assert same_bits(at("high", spec, case), highest)
    assert same_bits(at("medium", spec, case), highest) is not native.bfloat16_products()
    assert same_bits(at("highest", spec, case), highest)


@each(lambda spec: few(spec, T=20))
def test_what_has_no_products_in_float32_keeps_its_bits(spec: OpSpec, case: Case) -> None:
    """Numbers in float64, and tokens that are read one by one (their gradients come through chunks)."""
    assert same_bits(at("medium", spec, case, dtype=torch.float64), at("highest", spec, case, dtype=torch.float64))
    by_tokens = [at(precision, spec, case, "recurrent") for precision in ("medium", "highest")]
    assert torch.equal(*(found["output"] for found in by_tokens))


def test_memories_of_few_keys_keep_their_bits() -> None:
    """Their chunks are short, and each rounds the memory again."""
    spec = load_spec("gated_delta")
    for case in (case for case in spec.cases if case.sizes["K"] < 16):
        assert same_bits(at("medium", spec, case), at("highest", spec, case))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    for spec in SPECS:
        case = resized(variety(spec)[0], B=1, T=150, H=2, HV=4, K=40, V=70)
        alone = at("medium", spec, case)
        torch.set_num_threads(2)
        assert same_bits(at("medium", spec, case), alone)
        torch.set_num_threads(1)


@pytest.mark.parametrize("setting", ["'none'", "'ieee'", "'tf32'", "'bf16'"])
def test_it_may_be_said_by_the_backends_too(setting: str) -> None:
    """After which torch.get_float32_matmul_precision raises."""
    code = f"""
    before = call("gated_delta")
    torch.backends.mkldnn.matmul.fp32_precision = {setting}
    print(all(map(torch.equal, before, call("gated_delta"))))
    """
    assert prints(code) == f"{setting != repr('bf16') or not native.bfloat16_products()}\n"


def test_no_other_set_has_them() -> None:
    for name in native.instruction_sets():
        found = prints("print(native.bfloat16_products())", LAVAGNA_CPU_ISA=name)
        assert found == f"{name == 'avx512' and native.bfloat16_products()}\n" or native.instruction_set() != "avx512"
