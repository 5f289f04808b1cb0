"""Every parameter is used, and learns."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject

__all__ = ["untrained"]


def untrained(subject: Subject) -> Iterator[Measurement]:
    """No gradient of a weighted sum of the outputs is missing, or zero throughout."""
    parameters = subject.parameters
    if not parameters:
        raise NotApplicable("it has no parameters")
    frozen = {n for n, p in subject.origin.model.named_parameters() if not p.requires_grad}
    tokens = subject.longest(33)
    x = subject.make(2, tokens)
    answer = subject.run(x, grad=True)
    weights = torch.randn(answer.output.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    if answer.output.requires_grad:
        subject.backward((answer.output.double() * weights).sum())
    still = [n for n, p in parameters.items() if n not in frozen and (p.grad is None or not bool(p.grad.any()))]
    used = {name for name in still if _matters(subject, name, x)}
    named = ", ".join(still[:4]) + (f" and {len(still) - 4} more" if len(still) > 4 else "")
    notes = [f"without gradient: {named}"] if still else []
    if used:
        notes.append(f"of these the output depends on {', '.join(sorted(used)[:4])}")
    if frozen:
        notes.append(f"{len(frozen)} parameters are frozen")
    yield Measurement(
        float(len(still)),
        0.0,
        Example(tokens, 2, f"the gradients of {len(parameters) - len(frozen)} parameters"),
        "; ".join(notes),
        cause="a parameter is detached, or read through .data or under no_grad, on its way" if used else "",
    )


def _matters(subject: Subject, name: str, x: torch.Tensor) -> bool:
    """Whether another value of the parameter gives another output."""
    parameter = subject.parameters[name]
    kept = parameter.detach().clone()
    before = subject.run(x).output
    with torch.no_grad():
        parameter.mul_(1.5).add_(0.25)
    after = subject.run(x).output
    with torch.no_grad():
        parameter.copy_(kept)
    return difference(after, before) > subject.tolerance
