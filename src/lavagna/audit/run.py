"""The audit: every check on one model, in one report."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from ..errors import InputError, unknown_name
from .adapters import Adapter, adapt
from .finding import Finding, Measurement, ModelError, NotApplicable, Status
from .report import Report
from .subject import Subject, copy_module
from .traps import TRAPS, Trap, consequences_of

__all__ = ["assert_sound", "audit"]


def audit(
    model: Any,
    *,
    vocabulary: int | None = None,
    width: int | None = None,
    max_tokens: int | None = None,
    allow: Collection[str] = (),
    name: str | None = None,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Look for every trap of the table in a sequence model.

    The model itself is left as it is: copies are run, on the CPU and in evaluation mode. Most checks run in float64
    on a copy whose parameters are shaken by a tenth of their size, so that a parameter of zero hides nothing;
    precision, extreme inputs and the size of the state are measured on the parameters as they are.

    Args:
        model: a model or mixer of this package, a causal language model of transformers, or any module or function
            of int [B, T] or float [B, T, D] that returns [B, T, ...], alone or with a state. Arguments of the names
            that people use for states, masks, lengths and boundaries are found in its signature and tried.
        vocabulary, width: the input of another module or function: tokens below `vocabulary`, or vectors. A module's
            is found by trying.
        max_tokens: the longest sequence that it can read; None: any, or what the model itself says.
        allow: names of traps that may fail ("no-position" for a model that is meant to know no order).
        name: what to call it in the report.
        on_progress: called with (done, total, title of the trap that comes next).

    Returns:
        The report. A model that raises is a finding.

    Raises:
        InputError: `model` is no sequence model, or what it takes cannot be found out; an unknown name in `allow`.
    """
    known = [trap.name for trap in TRAPS]
    for allowed in allow:
        if allowed not in known:
            raise InputError(unknown_name("trap", allowed, known))
    copied = copy_module(model) if isinstance(model, nn.Module) else model
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        origin = adapt(copied, vocabulary=vocabulary, width=width, max_tokens=max_tokens)
        subject = Subject.of(origin)
        findings = []
        for done, trap in enumerate(TRAPS):
            if on_progress is not None:
                on_progress(done, len(TRAPS), trap.title)
            finding = _judge(trap, subject)
            if finding.status is Status.FAIL and trap.name in allow:
                finding = finding._replace(status=Status.ACCEPTED)
            findings.append(finding)
    if on_progress is not None:
        on_progress(len(TRAPS), len(TRAPS), "")
    return Report(name or _name(model), _facts(subject), tuple(_with_roots(findings)))


def assert_sound(model: Any, **arguments: Any) -> None:
    """Fail, as a test does, if :func:`audit` finds a trap that is not allowed.

    >>> def test_my_model():
    ...     assert_sound(MyModel(), width=64, allow=["no-position"])

    Args:
        model, arguments: as :func:`audit` has them.

    Raises:
        AssertionError: with every failure, its smallest example, likely cause and remedy.
    """
    report = audit(model, **arguments)
    if not report.passed:
        raise AssertionError(str(report))


def _judge(trap: Trap, subject: Subject) -> Finding:
    """Run one check until a measurement fails; the verdict."""
    if subject.max_tokens is not None and subject.max_tokens < 1:
        return Finding(trap.name, trap.title, Status.NOT_APPLICABLE, "the model cannot be run")
    worst: Measurement | None = None
    try:
        for measurement in trap.check(subject):
            if measurement.fails:
                return _found(trap, Status.FAIL, measurement)
            if worst is None or measurement.share >= worst.share:
                worst = measurement
    except NotApplicable as reason:
        if worst is None:
            return Finding(trap.name, trap.title, Status.NOT_APPLICABLE, str(reason))
    except ModelError as error:
        return Finding(
            trap.name,
            trap.title,
            Status.FAIL,
            f"the model {error}",
            example=error.example,
            cause="the model cannot do what this check asks of it",
            remedy="run the call of the error by itself",
        )
    if worst is None:
        return Finding(trap.name, trap.title, Status.NOT_APPLICABLE, "its sequences are too short for this check")
    return _found(trap, Status.PASS, worst)


def _found(trap: Trap, status: Status, measurement: Measurement) -> Finding:
    failed = status is Status.FAIL
    return Finding(
        trap.name,
        trap.title,
        status,
        measurement.note,
        measurement.value,
        measurement.tolerance,
        trap.unit,
        measurement.example,
        (measurement.cause or trap.cause) if failed else "",
        trap.remedy if failed else "",
    )


def _with_roots(findings: list[Finding]) -> list[Finding]:
    """Name for each failure those others that it may be a consequence of."""
    failed = {f.trap for f in findings if f.status in (Status.FAIL, Status.ACCEPTED)}
    causes = {trap.name: consequences_of(trap) for trap in TRAPS if trap.name in failed}
    return [
        f._replace(because_of=tuple(name for name, drags in causes.items() if f.trap in drags))
        if f.status is Status.FAIL
        else f
        for f in findings
    ]


def _name(model: Any) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", repr(model))


def _facts(subject: Subject) -> dict[str, str]:
    adapter: Adapter = subject.adapter
    takes = [
        word
        for word, has in {
            "a state": adapter.takes_state,
            "a mask": adapter.takes_mask,
            "packed sequences": adapter.takes_packing,
        }.items()
        if has
    ]
    facts = {
        "input": f"reads vectors of {adapter.width}"
        if adapter.vocabulary is None
        else f"reads tokens below {adapter.vocabulary:,}",
        "takes": f"takes {', '.join(takes) or 'its input alone'}",
        "precision": f"checked in {str(subject.dtype).removeprefix('torch.')}",
    }
    if subject.module is not None:
        facts["size"] = f"{sum(p.numel() for p in subject.module.parameters()):,} parameters"
    if subject.max_tokens is not None:
        facts["longest"] = f"no more than {subject.max_tokens:,} tokens"
    return facts
