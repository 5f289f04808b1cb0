"""The past cannot see the future."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..compare import difference
from ..finding import Example, Measurement
from ..subject import Subject

__all__ = ["future_leak"]

#: read with every token changed in turn
SHORT = (2, 3, 4, 5, 8)
#: read with tokens changed around the boundaries of chunks of 16, 32, 64, 128 and 256
LONG = (17, 33, 65, 130, 260)
AROUND = (1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257)
#: lengths of the gradient form
GRADIENT = (3, 5, 65)


def future_leak(subject: Subject) -> Iterator[Measurement]:
    """Change token t, or end before it: no output before it may change; nor may its gradient reach one."""
    for tokens in subject.lengths(*SHORT, *LONG):
        x = subject.make(1, tokens)
        base = subject.run(x).output
        for t in _changed(tokens):
            other = x.clone()
            other[:, t] = subject.other(x)[:, t]
            changed = subject.run(other).output
            yield Measurement(
                difference(changed[:, :t], base[:, :t]),
                subject.tolerance,
                Example(tokens, 1, f"changing token {t} changes outputs before it"),
            )
        for t in sorted({tokens // 2, tokens - 1}):
            yield Measurement(
                difference(subject.run(x[:, :t]).output, base[:, :t]),
                subject.tolerance,
                Example(tokens, 1, f"leaving out token {t} and what follows changes outputs before it"),
            )
    for tokens in subject.lengths(*GRADIENT):
        yield from _gradients(subject, tokens)


def _changed(tokens: int) -> list[int]:
    places = range(1, tokens) if tokens <= max(SHORT) else sorted({*AROUND, tokens // 2, tokens - 1})
    return [t for t in places if t < tokens]


def _gradients(subject: Subject, tokens: int) -> Iterator[Measurement]:
    x = subject.make(1, tokens)
    for t in [t - 1 for t in _changed(tokens)]:
        answer, vectors = subject.vectors(x)
        if vectors is None or not answer.output.requires_grad:
            return
        weights = torch.linspace(-1, 1, answer.output[:, t].numel(), dtype=torch.float64)
        loss = (answer.output[:, t].double().flatten() * weights).sum()
        gradient = subject.gradient(loss, vectors)
        if gradient is None:
            return
        ahead, size = gradient[:, t + 1 :], float(gradient.abs().max()) or 1.0
        yield Measurement(
            difference(ahead, torch.zeros_like(ahead), size),
            subject.tolerance,
            Example(tokens, 1, f"the gradient of output {t} reaches tokens behind it"),
            cause="the backward pass alone looks ahead",
        )
