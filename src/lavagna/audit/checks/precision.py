"""Rounding stays rounding: in float32, in bfloat16, over long sequences, and for extreme inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..compare import usual_difference
from ..finding import Example, Measurement, ModelError, NotApplicable
from ..subject import Subject

__all__ = ["imprecise", "not_finite"]

LENGTHS = (16, 64, 256, 1024)
#: dtype -> the error allowed in any case, and how many times that of rounded weights
ALLOWED = {torch.float32: (2e-6, 100.0), torch.bfloat16: (1e-2, 4.0)}
#: what inputs are multiplied by
EXTREMES = (0.0, 1e-20, 1e4)
#: what matrices are multiplied by
LARGE = 16.0


def imprecise(subject: Subject) -> Iterator[Measurement]:
    """Errors against float64, beside the error that rounding the weights alone makes."""
    if subject.dtype != torch.float64:
        raise NotApplicable("it does not compute in float64, so that there is nothing to compare with")
    exact = Subject.copied(subject.origin, torch.float64, subject.widen)
    worst: Measurement | None = None
    growth: list[str] = []
    for dtype, (floor, factor) in ALLOWED.items():
        name = str(dtype).removeprefix("torch.")
        low = Subject.copied(subject.origin, dtype)
        rounded = Subject.copied(subject.origin, torch.float64, subject.widen)
        _round(rounded, dtype)
        errors: dict[int, float] = {}
        end = ""
        for tokens in subject.lengths(*LENGTHS):
            x = low.make(1, tokens)
            wide = x if x.dtype == torch.int64 else x.double()
            try:
                found = low.run(x).output
            except ModelError as error:
                if worst is None:
                    raise
                end = f", then the model {error}"
                break
            expected = exact.run(wide).output
            unavoidable = usual_difference(rounded.run(wide).output, expected)
            errors[tokens] = usual_difference(found, expected)
            measured = Measurement(
                errors[tokens],
                floor + factor * unavoidable,
                Example(tokens, 1, f"{name} against float64"),
                f"rounding the weights alone makes {unavoidable:.2g}",
            )
            yield measured
            if worst is None or measured.share > worst.share:
                worst = measured
        # What raises is not silent; that it was not measured is said.
        growth.append(f"{name} {_growth(errors)}{end}")
    if worst is not None:
        yield worst._replace(note="; ".join([*growth, worst.note]))


def _growth(errors: dict[int, float]) -> str:
    """The error of the shortest and of the longest sequence."""
    if not errors:
        return "not measured"
    few, many = min(errors), max(errors)
    return f"{errors[few]:.2g} of {few} tokens" + (f" and {errors[many]:.2g} of {many:,}" if many > few else "")


def _round(subject: Subject, dtype: torch.dtype) -> None:
    """Give each parameter a relative error of the dtype's size."""
    generator = torch.Generator().manual_seed(5)
    eps = torch.finfo(dtype).eps / 2
    with torch.no_grad():
        for parameter in subject.parameters.values():
            noise = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
            parameter.mul_(1 + eps * noise)


def not_finite(subject: Subject) -> Iterator[Measurement]:
    """No output and no gradient is NaN or infinite: for zeros, tiny and huge vectors, for large weights.

    Weights so large that float64 is finite, and float32 should be.
    """
    low = Subject.copied(subject.origin, torch.float32)
    wide, large = (Subject.copied(subject.origin, dtype, subject.widen) for dtype in (subject.dtype, torch.float32))
    large.widen = False
    for other in (wide, large):
        _enlarge(other)
    for tokens in subject.lengths(1, 3, 67, 300):
        x = low.make(1, tokens)
        for what, factor in (("as they come", None), *((f"multiplied by {f:g}", f) for f in EXTREMES)):
            yield _finite(low, x, factor, Example(tokens, 1, f"vectors {what}"))
        yield _finite(low, low.constant(1, tokens), 1e4, Example(tokens, 1, "one huge vector repeated"))
        example = Example(tokens, 1, f"matrices multiplied by {LARGE:g}")
        found = _finite(large, x, None, example)
        if found.fails and _finite(wide, x if x.dtype == torch.int64 else x.double(), None, example).fails:
            found = found._replace(value=0.0, note="not finite in float64 either")
        yield found


def _enlarge(subject: Subject) -> None:
    """Multiply all matrices."""
    with torch.no_grad():
        for parameter in subject.parameters.values():
            if parameter.ndim > 1:
                parameter.mul_(LARGE)


def _finite(subject: Subject, x: Tensor, factor: float | None, example: Example) -> Measurement:
    if factor is None:
        output = subject.run(x, grad=True).output
    elif subject.adapter.vocabulary is None:
        output = subject.run(x * factor, grad=True).output
    else:
        with subject.embedding(lambda made: made * factor, x.shape):
            output = subject.run(x, grad=True).output
    if not bool(torch.isfinite(output).all()):
        return Measurement(float((~torch.isfinite(output)).sum()), 0.0, example, "in the output")
    if output.requires_grad:
        subject.backward(output.square().mean())
        for name, parameter in subject.parameters.items():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                bad = float((~torch.isfinite(parameter.grad)).sum())
                return Measurement(bad, 0.0, example, f"in the gradient of {name}")
    return Measurement(0.0, 0.0, example)
