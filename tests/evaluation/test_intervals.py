"""How sure a figure is."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lavagna.errors import InputError
from lavagna.evaluation import (
    LEAST_DOCUMENTS,
    Interval,
    Scores,
    bits_per_byte,
    by_position,
    paired_difference,
    position_change,
)


def make_scores(bits: np.ndarray, sizes: np.ndarray) -> Scores:
    """Scores of documents, half of each in the first position bin."""
    position_bits = np.stack([bits / 2, bits / 2], 1)
    position_bytes = np.stack([sizes // 2, sizes - sizes // 2], 1)
    return Scores(np.arange(len(bits)), bits, sizes, np.array([0, 8, 16]), position_bits, position_bytes)


def draw(generator: np.random.Generator, documents: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Rates that vary with the document, 2 bits per byte on average whatever its length."""
    sizes = generator.integers(50, 500, documents)
    return sizes * generator.gamma(4, 0.5, documents), sizes


def test_the_value_is_all_bits_by_all_bytes() -> None:
    scores = make_scores(np.array([10.0, 50.0]), np.array([10, 20]))
    assert bits_per_byte([scores]).value == 2.0
    other = make_scores(np.array([20.0, 100.0]), np.array([10, 20]))
    assert bits_per_byte([scores, other]).value == 3.0
    assert [interval.value for _, _, interval in by_position([scores])] == [2.0, 2.0]
    assert [edges for *edges, _ in by_position([scores])] == [[0, 8], [8, 16]]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    """Of 200 data sets with a known rate about 95 % of the intervals hold it, and about 80 % at 80 %."""
    generator = np.random.default_rng(0)
    covered = {0.95: 0, 0.8: 0}
    for _ in range(200):
        scores = make_scores(*draw(generator))
        for confidence in covered:
            interval = bits_per_byte([scores], confidence=confidence)
            assert interval.low < interval.value < interval.high
            covered[confidence] += interval.low <= 2.0 <= interval.high
    assert 0.88 < covered[0.95] / 200 < 0.99  # two or three standard errors of 1.5 %, and few documents are too few
    assert 0.70 < covered[0.8] / 200 < 0.88


def test_more_documents_make_it_narrower() -> None:
    generator = np.random.default_rng(1)
    few, many = (bits_per_byte([make_scores(*draw(generator, n))]) for n in (50, 5000))
    assert 5 < (few.high - few.low) / (many.high - many.low) < 20  # sqrt(100) = 10


def test_a_paired_difference_is_sure_where_the_two_intervals_overlap() -> None:
    generator = np.random.default_rng(2)
    bits, sizes = draw(generator)
    better = make_scores(bits - 0.05 * sizes + generator.normal(0, 2, len(bits)), sizes)
    worse = make_scores(bits, sizes)
    a, b = bits_per_byte([better]), bits_per_byte([worse])
    assert a.high > b.low
    difference = paired_difference([better], [worse])
    assert difference.value == pytest.approx(a.value - b.value)
    assert difference.excludes_zero
    assert -0.06 < difference.low < difference.high < -0.04
    assert (difference.high - difference.low) * 5 < b.high - b.low


def test_identical_models_cannot_be_told_apart() -> None:
    bits, sizes = draw(np.random.default_rng(3))
    one, two = make_scores(bits, sizes), make_scores(bits + 0.1 * sizes, sizes)
    same = paired_difference([one], [one])
    assert same == Interval(0, 0, 0)
    assert not same.excludes_zero
    assert paired_difference([one, two], [two, one]).value == 0


def test_runs_are_averaged_and_not_drawn_again() -> None:
    bits, sizes = draw(np.random.default_rng(4))
    runs = [make_scores(bits + shift * sizes, sizes) for shift in (-0.5, 0.0, 0.5)]
    mean = [make_scores(bits, sizes)]
    assert bits_per_byte(runs) == pytest.approx(bits_per_byte(mean))
    assert by_position(runs)[1][2] == pytest.approx(by_position(mean)[1][2])


@pytest.mark.parametrize("documents", [1, LEAST_DOCUMENTS - 1, LEAST_DOCUMENTS])
def test_of_too_few_documents_nothing_is_known(documents: int) -> None:
    scores = make_scores(np.arange(10.0, 10.0 + documents), np.full(documents, 5))
    other = make_scores(np.full(documents, 20.0), np.full(documents, 5))
    found = [bits_per_byte([scores]), by_position([scores])[0][2], position_change([scores], 0, 1)]
    found.append(paired_difference([scores], [other]))
    assert all(math.isinf(i.low) and math.isinf(i.high) for i in found) == (documents < LEAST_DOCUMENTS)
    assert all(math.isfinite(i.low) and math.isfinite(i.high) for i in found) == (documents >= LEAST_DOCUMENTS)


def test_a_change_of_position_is_paired_by_document() -> None:
    """Documents differ by far more than positions do, and those that end early do not count."""
    generator = np.random.default_rng(7)
    rates = generator.gamma(4, 0.5, 60)
    sizes = np.tile([100, 100], (60, 1))
    bits = sizes * (rates[:, None] + [0.0, 0.05])
    bits[50:, 0], bits[50:, 1], sizes[50:, 1] = 900.0, 0.0, 0
    scores = Scores(np.arange(60), bits.sum(1), sizes.sum(1), np.array([0, 8, 16]), bits, sizes)
    near, far = (interval for *_, interval in by_position([scores]))
    assert far.low < near.high
    change = position_change([scores], 0, 1)
    assert tuple(change) == pytest.approx((0.05, 0.05, 0.05))


def test_a_position_that_few_documents_reach() -> None:
    """Bins without text are left out, one document's has no interval, and draws without it do not count."""
    bits = np.array([[8.0, 4.0, 0.0]] + [[6.0, 0.0, 0.0], [9.0, 0.0, 0.0]] * 4)
    sizes = np.array([[4, 2, 0]] + [[4, 0, 0]] * 8)
    scores = Scores(np.arange(9), bits.sum(1), sizes.sum(1), np.array([0, 8, 16, 32]), bits, sizes)
    first, second = by_position([scores])
    assert first[:2] == (0, 8)
    assert first[2].low < first[2].value < first[2].high
    assert second == (8, 16, Interval(2.0, -math.inf, math.inf))
    sizes[1:LEAST_DOCUMENTS, 1], bits[1:LEAST_DOCUMENTS, 1] = 2, 8.0
    shallow = by_position([scores._replace(position_bits=bits, position_bytes=sizes)])[1][2]
    assert 2.0 <= shallow.low < shallow.value < shallow.high == 4.0


def test_the_same_seed_gives_the_same_interval() -> None:
    scores = make_scores(*draw(np.random.default_rng(5)))
    assert bits_per_byte([scores]) == bits_per_byte([scores]) != bits_per_byte([scores], seed=1)


def test_other_documents_are_refused() -> None:
    bits, sizes = draw(np.random.default_rng(6))
    one = make_scores(bits, sizes)
    other = one._replace(documents=one.documents + 1)
    longer = make_scores(bits, sizes + 1)
    for wrong in (other, longer):
        with pytest.raises(InputError, match="runs that scored the same documents, got different ones"):
            bits_per_byte([one, wrong])
        with pytest.raises(InputError, match="runs that scored the same documents, got different ones"):
            paired_difference([one], [wrong])
    for empty in (lambda: bits_per_byte([]), lambda: paired_difference([one], []), lambda: by_position([])):
        with pytest.raises(InputError, match="expected at least one run, got none"):
            empty()
