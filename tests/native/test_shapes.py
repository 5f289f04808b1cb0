"""Kernels at sizes that nobody thought of, against the recurrence in float64."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import pytest
import torch

from lavagna.ops.spec import Case, OpSpec

from ..support.budget import close_all
from ..support.operators import (
    answer,
    double,
    draw,
    exact_alone,
    packed,
    reference_row,
    resized,
    variety,
)
from .support import NATIVE, native_row

#: letter -> sizes; those of a dimension that vectors run over pass the widest vector
SIZES = {"B": (1, 3), "T": (0, 70), "K": (1, 40), "V": (1, 40), "D": (1, 70), "N": (1, 20), "W": (1, 8)}


@st.composite
def cases(draw_from: st.DrawFn, spec: OpSpec) -> Case:
    """A case of the spec with sizes of its own."""
    case = draw_from(st.sampled_from(variety(spec)))
    sizes = {letter: draw_from(st.integers(*SIZES[letter]), label=letter) for letter in case.sizes if letter in SIZES}
    if "HV" in case.sizes:  # value heads, a multiple of the key heads
        heads = draw_from(st.integers(1, 3), label="H")
        sizes |= {"H": heads, "HV": heads * draw_from(st.integers(1, 3), label="HV / H")}
    if "G" in case.sizes:  # groups divide the channels
        groups = draw_from(st.integers(1, 3), label="G")
        sizes |= {"G": groups, "D": groups * sizes["D"]}
    return resized(case, **sizes)


pytestmark = [pytest.mark.subset] if NATIVE else []

BY_NAME = {spec.op: spec for spec in NATIVE}
EACH = pytest.mark.parametrize("op", BY_NAME)  # by name, or hypothesis would print whole specs


@EACH
@hypothesis.settings(max_examples=40)
@hypothesis.given(data=st.data())
def test_any_sizes(op: str, data: st.DataObject) -> None:
    """In float64 closely; in float32 so that a wrong element is seen, for a tensor of one may be what cancels out."""
    spec = BY_NAME[op]
    inputs = draw(spec, data.draw(cases(spec)))
    exact = answer(spec, reference_row(spec), double(inputs))
    close_all(answer(spec, native_row(spec), double(inputs)), exact)
    for name, single in answer(spec, native_row(spec), inputs).items():
        if single.numel():
            error, size = (single - exact[name]).abs().max(), exact[name].abs().max()
            assert error <= 1e-3 * size + torch.finfo(torch.float32).tiny, name


@EACH
@hypothesis.settings(max_examples=10)
@hypothesis.given(data=st.data(), lengths=st.lists(st.integers(0, 40), min_size=1, max_size=5))
def test_packed_sequences_of_any_sizes(op: str, data: st.DataObject, lengths: list[int]) -> None:
    spec = BY_NAME[op]
    case = data.draw(cases(spec))
    case = case._replace(name=f"{case.name} {sorted(case.sizes.items())}")  # by which references are remembered
    inputs, bounds = packed(spec, case, lengths)
    close_all(answer(spec, native_row(spec), inputs, cu_seqlens=bounds), exact_alone(spec, case, lengths))
