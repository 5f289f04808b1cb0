"""The gradient is the derivative."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import Subject

__all__ = ["wrong_gradients"]

#: relative error of a derivative that no rounding explains
TOLERANCE = 1e-5
#: lengths; behind the usual chunk all parameters are moved at once
SHORT, LONG = 5, 67
#: at most so many tensors are tried, spread over the model
TENSORS = 40
#: the most that a direction of a tensor is stretched so that its slope counts beside the others
AMPLIFIED = 10.0
#: steps, largest first, as a share of a tensor's size
STEPS = tuple(10.0**-n for n in range(1, 8))
FIRST = 3  # the step that is tried first, with the one before it


class _Line(NamedTuple):
    """A direction in which tensors are moved.

    Fields:
        name: of the tensor, and the coordinate.
        tensors: what is moved, in place.
        directions: of their shapes.
        size: a natural step.
        slope: what autograd says.
    """

    name: str
    tensors: list[Tensor]
    directions: list[Tensor]
    size: float
    slope: float


class _Slope(NamedTuple):
    """A derivative by differences.

    Fields:
        value: of the derivative.
        error: how far it may be off.
        kink: the function has a corner here.
    """

    value: float
    error: float
    kink: bool


class _Tally:
    """How many derivatives were compared, and why some could not be."""

    def __init__(self) -> None:
        self.tried = self.kinks = self.unclear = 0

    def __str__(self) -> str:
        aside = [f"{self.tried} derivatives"]
        aside += [f"{self.kinks} at a kink, left out"] if self.kinks else []
        aside += [f"{self.unclear} too flat or too rough for differences"] if self.unclear else []
        return ", ".join(aside)


def wrong_gradients(subject: Subject) -> Iterator[Measurement]:
    """Autograd against centred differences, the step chosen for each coordinate; kinks are counted apart."""
    tally = _Tally()
    worst: Measurement | None = None
    for tokens in sorted({subject.longest(SHORT), subject.longest(LONG)}):
        for measurement in _at(subject, tokens, tally):
            yield measurement
            if worst is None or measurement.value >= worst.value:
                worst = measurement
    if not tally.tried:
        raise NotApplicable("neither parameters nor inputs have gradients")
    if worst is None:
        raise NotApplicable(f"nothing could be compared: {tally}")
    yield worst._replace(note=str(tally))


def _at(subject: Subject, tokens: int, tally: _Tally) -> Iterator[Measurement]:
    x = subject.make(1, tokens)
    yield from _expanded(subject, x)
    loss = _Loss(subject, x)
    moved = _moved(subject, loss)
    if tokens <= SHORT:
        yield from _compared(loss, _coordinates(moved), tally)
        return
    # All at once; one by one only to say where.
    joint = list(_compared(loss, [_joined(moved)] if moved else [], tally))
    if any(m.fails for m in joint):
        yield from _compared(loss, _directions(moved), tally)
    yield from joint


def _compared(loss: _Loss, lines: Iterable[_Line], tally: _Tally) -> Iterator[Measurement]:
    middle = loss()
    lines = list(lines)
    largest = max((abs(line.slope) for line in lines), default=0.0) or 1.0
    for line in lines:
        found = _differences(loss, line, middle, 1e-3 * largest)
        tally.tried += 1
        scale = max(abs(line.slope), abs(found.value), 1e-3 * largest)
        if found.kink:
            tally.kinks += 1
        elif found.error > 1e-2 * scale:
            tally.unclear += 1
        else:
            apart = max(abs(found.value - line.slope) - 3 * found.error, 0.0) / scale
            yield Measurement(
                apart,
                TOLERANCE,
                Example(loss.x.shape[1], 1, f"the derivative with respect to {line.name}"),
                f"autograd {line.slope:.6g}, differences {found.value:.6g}",
            )


class _Loss:
    """A fixed weighted sum of the outputs, as a function of parameters and vectors."""

    def __init__(self, subject: Subject, x: Tensor) -> None:
        self.subject = subject
        self.x = x.clone()
        output = subject.run(x).output
        generator = torch.Generator().manual_seed(2)
        self.weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        rounding = max(subject.rounding, torch.finfo(torch.float64).eps)
        #: rounding of the sum
        self.noise = rounding * float(output.abs().max()) * math.sqrt(output.numel())

    def value(self, output: Tensor) -> Tensor:
        return (output.double() * self.weights).sum()

    def __call__(self) -> float:
        return float(self.value(self.subject.run(self.x).output))


# Lines ------------------------------------------------------------------------------------------------------


class _Moved(NamedTuple):
    """A tensor with its gradient and its natural size."""

    name: str
    tensor: Tensor
    gradient: Tensor
    size: float


def _moved(subject: Subject, loss: _Loss) -> list[_Moved]:
    """Parameters and input vectors with what autograd says of them."""
    parameters = _tensors(subject)
    vectors = subject.adapter.vocabulary is None
    x = loss.x.detach().requires_grad_(vectors)
    answer = subject.run(x, grad=True)
    if not answer.output.requires_grad:
        return []
    subject.backward(loss.value(answer.output))
    tensors = [("the input", x), *parameters] if vectors else parameters
    loss.x = x.detach()  # the same memory, moved in place
    return [
        _Moved(
            name,
            tensor,
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.detach().clone(),
            float(tensor.detach().square().mean().sqrt()) or 1.0,
        )
        for name, tensor in tensors
    ]


def _coordinates(moved: list[_Moved]) -> Iterator[_Line]:
    """Two coordinates of each tensor: the steepest and one at random."""
    generator = torch.Generator().manual_seed(3)
    for name, tensor, gradient, size in moved:
        steepest = int(gradient.abs().argmax())
        random = int(torch.randint(tensor.numel(), (1,), generator=generator))
        for place in dict.fromkeys((steepest, random)):
            one = torch.zeros_like(gradient).flatten()
            one[place] = 1.0
            index = [int(i) for i in torch.unravel_index(torch.tensor(place), tensor.shape)]
            yield _Line(f"{name}{index}", [tensor], [one.view(tensor.shape)], size, float(gradient.flatten()[place]))


def _directions(moved: list[_Moved]) -> Iterator[_Line]:
    """A random direction of each tensor, as large as the tensor; larger where the loss hardly notices."""
    generator = torch.Generator().manual_seed(4)
    found = []
    for _, tensor, gradient, size in moved:
        direction = size * torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        found.append((direction, float((gradient.double() * direction).sum())))
    steepest = max((abs(slope) for _, slope in found), default=0.0)
    for (name, tensor, _, _), (direction, slope) in zip(moved, found, strict=True):
        factor = min(max(steepest / (abs(slope) or 1.0), 1.0), AMPLIFIED)
        along = (factor * direction).to(tensor.dtype)
        yield _Line(f"{name} in a random direction", [tensor], [along], 1.0, factor * slope)


def _joined(moved: list[_Moved]) -> _Line:
    lines = list(_directions(moved))
    return _Line(
        "all parameters in a random direction",
        [t for line in lines for t in line.tensors],
        [d for line in lines for d in line.directions],
        1.0,
        sum(line.slope for line in lines),
    )


def _tensors(subject: Subject) -> list[tuple[str, Tensor]]:
    """Parameters to try, at most TENSORS of them, spread over the model."""
    found: list[tuple[str, Tensor]] = [
        (n, p) for n, p in subject.parameters.items() if not p.is_complex() and p.numel()
    ]
    stride = math.ceil(len(found) / TENSORS) if found else 1
    return found[::stride]


# Differences ------------------------------------------------------------------------------------------------


def _differences(loss: _Loss, line: _Line, middle: float, least: float) -> _Slope:
    """The derivative along a line: the step at which neighbouring steps agree best.

    Args:
        loss: the function of what the line moves.
        line: where to go.
        middle: the loss where the line starts.
        least: slopes below this need be no more exact than this one.
    """
    kept = [tensor.detach().clone() for tensor in line.tensors]

    def at(distance: float) -> float:
        try:
            with torch.no_grad():
                for tensor, old, direction in zip(line.tensors, kept, line.directions, strict=True):
                    tensor.copy_(old + distance * direction)
            return loss()
        finally:
            with torch.no_grad():
                for tensor, old in zip(line.tensors, kept, strict=True):
                    tensor.copy_(old)

    centred: dict[int, float] = {}
    jumps: dict[int, float] = {}  # between the slopes on both sides

    def step(n: int) -> None:
        if n not in centred:
            h = STEPS[n] * line.size
            above, below = at(h), at(-h)
            centred[n] = (above - below) / (2 * h)
            jumps[n] = (above - 2 * middle + below) / h

    def best() -> tuple[float, int]:
        """The least disagreement of neighbouring steps, and the smaller of them."""
        return min(
            (abs(centred[n] - centred[n + 1]) + loss.noise / (STEPS[n + 1] * line.size), n + 1)
            for n in centred
            if n + 1 in centred
        )

    enough = TOLERANCE * max(abs(line.slope), least)
    for n in (FIRST, FIRST + 1):
        step(n)
        if abs(centred[n] - line.slope) > enough:
            break
    else:
        return _Slope(centred[n], 0.0, False)  # nothing else agrees with autograd at two steps
    for n in range(len(STEPS)):
        step(n)
    error, n = best()
    # At a corner the slopes on both sides differ by the same amount, however small the step.
    last = [abs(jumps[m]) for m in sorted(jumps)[-3:-1]]
    corner = len(last) == 2 and min(last) > 0.5 * max(last) > 10 * error
    return _Slope(centred[n], error, corner and min(last) > 1e-4 * max(abs(centred[n]), abs(line.slope)))


def _expanded(subject: Subject, x: Tensor) -> Iterator[Measurement]:
    """The gradient of a sum comes in as one number, expanded; it must act as ones."""
    moved = _tensors(subject)
    results = []
    for whole in (False, True):
        answer = subject.run(x, grad=True)
        if not answer.output.requires_grad:
            return
        ones = torch.ones_like(answer.output)
        subject.backward((answer.output * ones).sum() if whole else answer.output.sum())
        results.append([None if p.grad is None else p.grad.clone() for _, p in moved])
    size = max((float(g.abs().max()) for g in results[1] if g is not None), default=0.0) or 1.0
    for (name, _), expanded, contiguous in zip(moved, *results, strict=True):
        if expanded is not None and contiguous is not None:
            yield Measurement(
                difference(expanded, contiguous, size),
                max(TOLERANCE, subject.tolerance),
                Example(x.shape[1], 1, f"the gradient of {name} for output.sum() against the same with ones"),
                cause="the backward pass reads an expanded gradient as if its elements lay side by side",
            )
