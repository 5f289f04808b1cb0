"""The audit as a caller sees it: the model untouched, crashes as findings, allowed failures, clear refusals."""

from __future__ import annotations

import copy
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lavagna.audit import TRAPS, Status, assert_sound, audit
from lavagna.errors import InputError
from tests.conftest import ROOT

from .twins.attention import NoPositions
from .twins.causality import NoMask
from .twins.decoder import Decoder
from .twins.padding import MaskIgnored
from .twins.recurrence import Recurrence


def test_the_model_is_left_as_it_is() -> None:
    model = Recurrence().train()
    model.out.bias.requires_grad_(False)
    model.out.weight.grad = torch.ones_like(model.out.weight)
    before = copy.deepcopy(model)
    generator = torch.get_rng_state()
    audit(model, max_tokens=20)
    assert model.training
    assert torch.equal(torch.get_rng_state(), generator)
    for (name, now), then in zip(model.named_parameters(), before.parameters(), strict=True):
        assert torch.equal(now, then), name
        assert now.requires_grad == then.requires_grad, name
        assert now.dtype == torch.float32
        assert (now.grad is None) == (name != "out.weight"), name
    assert torch.equal(model.out.weight.grad, torch.ones_like(model.out.weight))


def test_two_audits_say_the_same() -> None:
    model = MaskIgnored()
    assert audit(model, max_tokens=20).to_dict() == audit(model, max_tokens=20).to_dict()


def test_frozen_parameters_are_not_untrained() -> None:
    model = Recurrence()
    model.gate.weight.requires_grad_(False)
    finding = audit(model, max_tokens=20)["untrained"]
    assert finding.status is Status.PASS
    assert finding.reason == "1 parameters are frozen"


def test_one_finding_for_each_trap_in_order() -> None:
    report = audit(Decoder(), max_tokens=20)
    assert [finding.trap for finding in report.findings] == [trap.name for trap in TRAPS]
    assert report["packed"].status is Status.NOT_APPLICABLE
    assert "cu_seqlens" in report["packed"].reason


def test_progress_counts_the_traps() -> None:
    seen: list[tuple[int, int, str]] = []
    audit(Decoder(), max_tokens=8, on_progress=lambda *what: seen.append(what))
    total = len(TRAPS)
    assert [done for done, _, _ in seen] == list(range(total + 1))
    assert {n for _, n, _ in seen} == {total}
    assert [title for _, _, title in seen] == [*(trap.title for trap in TRAPS), ""]


def test_an_allowed_failure_is_no_failure() -> None:
    report = audit(NoPositions(), max_tokens=20, allow=["no-position"])
    assert report.passed
    assert report["no-position"].status is Status.ACCEPTED


def test_an_allowed_failure_explains_others() -> None:
    report = audit(NoMask(), max_tokens=20, allow=["future-leak"])
    assert not report.passed
    assert all("future-leak" in finding.because_of for finding in report.failures)


def test_assert_sound_says_what_is_wrong() -> None:
    assert_sound(Decoder(), max_tokens=20)
    with pytest.raises(AssertionError) as failed:
        assert_sound(MaskIgnored(), max_tokens=20)
    message = str(failed.value)
    assert "padding attended (padding)" in message
    assert "smallest example: 1 row of 2 tokens" in message
    assert "remedy: hide padded keys" in message


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError("of no use")


class Squeezes(Recurrence):
    """A row of one is lost."""

    def forward(self, x: Tensor, *arguments: Any, **given: Any) -> Any:
        y, state = super().forward(x, *arguments, **given)
        return y.squeeze(0), state


class FailsBackward(nn.Module):
    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
            raise RuntimeError("not written yet")

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.Function.apply(self.linear(x))


def test_a_model_that_always_raises_is_one_finding() -> None:
    report = audit(Raises(), width=3)
    assert [finding.trap for finding in report.failures] == ["crash"]
    assert report["crash"].reason == "the model raised ZeroDivisionError: of no use"
    assert {f.status for f in report.findings if f.trap != "crash"} == {Status.NOT_APPLICABLE}
    assert report["gradients"].reason == "the model cannot be run"


class EndsAt40(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > 40:
            raise ValueError("too long")
        return self.linear(x)


def test_the_shortest_crash_is_found_and_drags_no_other_along() -> None:
    report = audit(EndsAt40())
    assert [finding.trap for finding in report.failures] == ["crash"]
    example = report["crash"].example
    assert example is not None
    assert (example.tokens, example.batch) == (41, 1)


class Table(nn.Module):
    """The usual end of a decoder: a table of positions, one of numbers to learn, or a buffer that holds a mask."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.positions = nn.Embedding(150, 8) if kind == "positions" else None
        self.learned = nn.Parameter(torch.randn(1, 150, 8)) if kind == "learned" else None
        self.register_buffer("mask", torch.ones(150, 150).tril() if kind == "mask" else None)
        self.out = nn.Linear(8, 11)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        y = self.words(x)
        if self.positions is not None:
            y = y + self.positions(torch.arange(T))
        if self.learned is not None:
            y = y + self.learned[:, :T]
        if self.mask is not None:
            y = y + self.mask[:T, :T] @ y
        return self.out(y)


@pytest.mark.parametrize("kind", ["positions", "learned", "mask"])
def test_the_end_of_a_table_is_no_crash(kind: str) -> None:
    report = audit(Table(kind))
    assert report.passed, str(report)
    assert report.facts["longest"] == "no more than 150 tokens"
    assert report["crash"].reason.startswith(f"longer than 150 tokens, the size of {kind}, the model raised ")


class Warns(Recurrence):
    def read(self, x: Tensor, state: Any) -> Any:
        warnings.warn("nothing to worry about", stacklevel=1)
        return super().read(x, state)


def test_a_warning_is_neither_a_crash_nor_printed() -> None:
    # Warnings are errors here, as in many suites.
    assert audit(Warns(), max_tokens=9).facts == audit(Recurrence(), max_tokens=9).facts


def test_an_output_of_another_shape_is_a_finding() -> None:
    report = audit(Squeezes(), width=16, max_tokens=20)
    assert report.failures[0].trap == "crash"
    assert report.failures[0].reason == "the model returned an output of [1, 16] for [1, 1] tokens"


def test_a_backward_pass_that_raises_is_a_finding() -> None:
    report = audit(FailsBackward(), width=4, max_tokens=20)
    failed = {finding.trap for finding in report.failures}
    assert "gradients" in failed
    assert report["gradients"].reason == "the model raised in backward RuntimeError: not written yet"


def test_a_function() -> None:
    def running_mean(x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]

    report = audit(running_mean, width=4)
    assert report.passed, str(report)
    assert report.model == "running_mean"
    assert report["untrained"].status is Status.NOT_APPLICABLE

    def mean(x: Tensor) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)

    assert audit(mean, width=4).failures[0].trap == "future-leak"


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("text", {}, "expected a torch module or a function, got a str"),
        (Decoder(), {"allow": ["no-positions"]}, "did you mean 'no-position'"),
        (Decoder(), {"width": 0}, "width must be at least 1, got 0"),
        (Decoder(), {"width": 3, "vocabulary": 3}, "not both"),
        (nn.LSTM(4, 4), {}, "LSTM with batch_first=False"),
        (nn.TransformerEncoderLayer(4, 2, 4), {}, "TransformerEncoderLayer with batch_first=False"),
        (lambda x: x, {}, "expected vocabulary= or width="),
        (nn.Linear(3, 5).weight, {}, "expected a torch module or a function"),
        (lambda x, y: x, {"width": 3}, "it needs y"),
        (nn.Bilinear(3, 3, 3), {}, "it needs input2"),
    ],
)
def test_what_is_no_sequence_model_is_refused(model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        audit(model, **arguments)
    assert message in str(refused.value)


def test_the_documentation_lists_every_trap_in_order() -> None:
    text = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \|", text, re.MULTILINE)
    assert table == [(trap.name, trap.title) for trap in TRAPS]


class RaisesInHalf(Recurrence):
    def read(self, x: Tensor, state: Any) -> Any:
        if x.dtype == torch.bfloat16:
            raise TypeError("not in bfloat16")
        return super().read(x, state)


def test_a_precision_that_it_cannot_compute_in_is_said_and_is_no_failure() -> None:
    finding = audit(RaisesInHalf(), max_tokens=20)["precision"]
    assert finding.status is Status.PASS
    assert re.match(r"float32 \S+ of 16 tokens; bfloat16 not measured, then the model raised TypeError", finding.reason)


def test_the_growth_of_errors_is_said() -> None:
    reason = audit(Recurrence(), max_tokens=70)["precision"].reason
    assert re.match(
        r"float32 (\S+) of 16 tokens and (\S+) of 64; bfloat16 (\S+) of 16 tokens and (\S+) of 64; ", reason
    )


class RaisesInSingleAndErrsInHalf(Recurrence):
    def read(self, x: Tensor, state: Any) -> Any:
        if x.dtype == torch.float32 and x.shape[1] > 16:
            raise TypeError("not that long in float32")
        y, state = super().read(x, state)
        return torch.zeros_like(y) if y.dtype == torch.bfloat16 else y, state


def test_one_precision_that_raises_hides_no_other() -> None:
    finding = audit(RaisesInSingleAndErrsInHalf(), max_tokens=70)["precision"]
    assert finding.status is Status.FAIL
    assert finding.example is not None
    assert finding.example.detail == "bfloat16 against float64"


class ComputesInFloat32(Recurrence):
    """As many models do: norms and the like in float32, whatever comes in."""

    def decay(self, c: Tensor) -> Tensor:
        return torch.sigmoid((self.gate(c) + 2).float()).to(c.dtype)


def test_float32_inside_is_widened() -> None:
    report = audit(ComputesInFloat32(), max_tokens=80)
    assert report.passed, str(report)
    assert report["stepping"].tolerance == 1e-9
    assert report["stepping"].measured is not None
    assert report["stepping"].measured < 1e-12


def test_what_cannot_be_float64_is_checked_in_float32() -> None:
    weight = torch.randn(4, 4)

    def model(x: Tensor) -> Tensor:
        return x.cumsum(1) @ weight

    report = audit(model, width=4)
    assert report.passed, str(report)
    assert report.facts["precision"] == "checked in float32"
    assert report["precision"].status is Status.NOT_APPLICABLE
