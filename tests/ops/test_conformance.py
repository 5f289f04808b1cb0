"""The seven contracts, for every operator in OPS, every form and implementation that runs here.

Cases come from each operator's spec; nothing here names an operator.
"""

from __future__ import annotations

import torch

from lavagna.ops.dispatch import Row
from lavagna.ops.spec import Case, OpSpec

from ..support.budget import check_all, close_all
from ..support.operators import answer, double, draw, each, exact_reference, same_reference


# 1. One answer ---------------------------------------------------------------------------------------------


@each(lambda spec: spec.cases, reference=False)
def test_one_answer_float32(spec: OpSpec, row: Row, case: Case) -> None:
    got = answer(spec, row, draw(spec, case, torch.float32))
    check_all(got, same_reference(spec, case, torch.float32), exact_reference(spec, case, torch.float32))


@each(lambda spec: spec.cases, reference=False)
def test_one_answer_float64(spec: OpSpec, row: Row, case: Case) -> None:
    got = answer(spec, row, double(draw(spec, case, torch.float32)))
    close_all(got, exact_reference(spec, case, torch.float32))
