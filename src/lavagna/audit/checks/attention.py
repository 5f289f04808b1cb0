"""Softmax attention, watched from outside: the scale, the axis, the mask, and whether order is known at all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor

from ..compare import difference
from ..finding import Example, Measurement, NotApplicable
from ..subject import TRACED, Subject
from ..tracing import HIDDEN, AttentionCall, Use

__all__ = ["mask_after_softmax", "no_position", "scale_forgotten", "softmax_over_queries"]

#: the most that logits of queries and keys of unit variance may deviate; √K · scale, which K^-0.5 makes one
DEVIATION = 2.0
#: keys of the row that shows what a scale does
KEYS = 32
#: of weights that should sum to one, which models may keep in half precision
SUM = 1e-2


def _watched(subject: Subject) -> list[AttentionCall]:
    calls = subject.attention
    if not calls:
        raise NotApplicable("no softmax over tokens was seen")
    return calls


def _example(subject: Subject, batch: int, layer: int, what: str) -> Example:
    return Example(subject.longest(TRACED), batch, f"{what} in softmax {layer + 1} of the pass")


def scale_forgotten(subject: Subject) -> Iterator[Measurement]:
    """Logits of queries and keys of unit variance deviate by √K · scale; far above one, rows saturate."""
    hidden, unit = 0, 0
    for layer, call in enumerate(_watched(subject)):
        if call.product is None:
            hidden += 1
            continue
        K = call.product.q.shape[-1]
        if _unit_length(call.product.q) and _unit_length(call.product.k):
            unit += 1
            continue
        deviation = abs(call.product.coefficient) * math.sqrt(K)
        yield Measurement(
            deviation,
            DEVIATION,
            _example(subject, 2, layer, f"logits of heads of size {K}, scaled by {call.product.coefficient:.3g}"),
            f"with unit-variance queries and keys the largest of {KEYS} weights is {_largest(deviation):.2f} on "
            f"average, {_largest(1.0):.2f} with 1/√{K}",
        )
    if unit:
        raise NotApplicable("queries and keys have unit length, so that the logits are bounded without a scale")
    if hidden:
        raise NotApplicable("a softmax was seen, but not the product of queries and keys that made its logits")


def _unit_length(x: Tensor) -> bool:
    """Whether all vectors have length one."""
    lengths = x.double().norm(dim=-1)
    return bool((lengths - 1).abs().max() < 1e-3)


@cache
def _largest(deviation: float) -> float:
    """The mean of the largest of KEYS weights, for normal logits of this deviation."""
    logits = torch.randn(2000, KEYS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return float((logits * deviation).softmax(-1).max(-1).values.mean())


def softmax_over_queries(subject: Subject) -> Iterator[Measurement]:
    """The softmax went along the axis that the values are summed over."""
    for layer, call in enumerate(_watched(subject)):
        if call.fused:
            yield Measurement(0.0, SUM, _example(subject, 2, layer, "torch's own scaled_dot_product_attention"))
        for use in call.uses:
            over_keys, over_queries = _off_one(use.weights, use.axis), _off_one(use.weights, -3 - use.axis)
            made = _as_used(call, use)
            # Weights that were made anew since tell by their sums alone.
            wrong = over_keys > SUM >= over_queries if made is None else made.axis != use.axis
            yield Measurement(
                over_keys if wrong else 0.0,
                SUM,
                _example(subject, 2, layer, "the weights of a query, summed over keys"),
            )


def mask_after_softmax(subject: Subject) -> Iterator[Measurement]:
    """No weight is set to zero after the softmax without the others growing."""
    for layer, call in enumerate(_watched(subject)):
        if call.fused:
            yield Measurement(0.0, SUM, _example(subject, 2, layer, "torch's own scaled_dot_product_attention"))
        for use in call.uses:
            made = _as_used(call, use)
            lost = 0.0 if made is None else float(torch.where(use.weights == 0, made.weights, 0).sum(made.axis).max())
            yield Measurement(lost, SUM, _example(subject, 2, layer, "weight lost between softmax and values"))


def _off_one(weights: Tensor, axis: int) -> float:
    return float((weights.double().sum(axis) - 1).abs().max())


def _as_used(call: AttentionCall, use: Use) -> Use | None:
    """The softmax's weights, turned as they were used, and its axis; None if they were changed but by zeros."""
    if call.weights is None or call.weights.numel() != use.weights.numel():
        return None
    made = call.weights.reshape(use.weights.shape).to(use.weights.dtype)
    for turned, axis in ((made, call.axis), (made.transpose(-1, -2), -3 - call.axis)):
        if torch.allclose(torch.where(use.weights == 0, turned, use.weights), turned, rtol=1e-2, atol=1e-4):
            return Use(turned, axis)
    return None


def no_position(subject: Subject) -> Iterator[Measurement]:
    """On a constant token a model that knows order shows it: in its outputs, or in its logits."""
    _watched(subject)
    tokens = subject.longest(TRACED)
    if tokens < 3:
        raise NotApplicable(f"it reads no more than {tokens} tokens")
    x = subject.constant(1, tokens)
    output = subject.run(x).output
    # Relative positions weigh equal values to the same value: they show in the logits alone.
    spreads = [difference(output, output[:, :1].expand_as(output)), *map(_logit_spread, subject.watch(x))]
    spread = max(spreads)
    same = spread <= 10 * subject.tolerance
    yield Measurement(
        float(same),
        0.0,
        Example(tokens, 1, f"a constant token; outputs and logits differ between positions by {spread:.2g}"),
    )


def _logit_spread(call: AttentionCall) -> float:
    """How much the visible logits of a constant token differ, as a share of the largest."""
    if call.logits is not None:
        return _spread(call.logits)
    assert call.product is not None
    logits = call.product.coefficient * call.product.q @ call.product.k.transpose(-1, -2)
    spread = _spread(logits)
    if call.bias is not None and call.bias.is_floating_point():
        spread = max(spread, _spread(call.bias))
    return spread


def _spread(logits: Tensor) -> float:
    logits = logits.double()
    visible = torch.where(logits > HIDDEN, logits, torch.nan).flatten(0, -3)
    worst = 0.0
    for head in visible:
        seen = head[torch.isfinite(head)]
        if seen.numel():
            worst = max(worst, float((seen.max() - seen.min()) / (seen.abs().max() + 1e-12)))
    return worst
