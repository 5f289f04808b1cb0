"""Intervals of differences cover documents and seeds; what cannot be told is not told."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lavagna.evaluation import Scores, intervals
from lavagna.studies.differences import (
    ASSUMED_SPREAD,
    SeedSpread,
    beyond,
    difference,
    positions,
    quality,
    seed_spread,
    student,
)

UNKNOWN = SeedSpread(None, 0)


def scores(bits: np.ndarray, size: int = 1000) -> Scores:
    count = len(bits)
    nowhere = np.zeros((count, 0))
    return Scores(
        np.arange(count), np.asarray(bits, dtype=float), np.full(count, size), np.zeros(1, np.int64), nowhere, nowhere
    )


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.706), (4, 2.776), (30, 2.042), (60, 2.000), (1000, 1.962)])
def test_students_t(freedom: int, value: float) -> None:
    assert student(freedom) == pytest.approx(value, rel=0.002)


def test_spread_is_pooled_over_groups() -> None:
    def run(total: float) -> Scores:
        return scores(np.full(10, total * 1000))

    # Deviations of ±.1 and (−.1, 0, .1) around means of 2 and 3: squares .02 and .02, 1 + 2 repetitions.
    found = seed_spread([[run(1.9), run(2.1)], [run(2.9), run(3.0), run(3.1)], [run(5.0)]])
    assert found.repeats == 3
    assert found.deviation == pytest.approx(math.sqrt(0.04 / 3))
    assert seed_spread([[run(1.0)], [run(2.0)]]) == UNKNOWN


def test_the_interval_of_a_candidate_covers_seeds_as_often_as_it_says() -> None:
    """Three runs whose documents all agree: only seeds differ, around 2 bits per byte."""
    generator = np.random.default_rng(0)
    held = 0
    for totals in generator.normal(2.0, 0.1, (400, 3)):
        runs = [scores(np.full(10, total * 1000)) for total in totals]
        found = quality(runs, seed_spread([runs]))
        held += found.low <= 2.0 <= found.high
    assert 0.92 < held / 400 < 0.98
    alone = quality(runs[:1], UNKNOWN)
    assert alone.low == pytest.approx(alone.high)


def test_intervals_by_position_cover_seeds_as_often_as_they_say() -> None:
    """As above, for bins of positions: bins 0 and 1 within a window of 16 tokens, bin 2 past it."""
    generator = np.random.default_rng(3)
    held = np.zeros(2)
    sizes = np.full((10, 3), 1000)
    for seeds in generator.normal(0.0, 0.1, (300, 3, 3)):
        runs = []
        for seed in seeds:
            bits = np.tile(1000 * (2.0 + seed), (10, 1))
            runs.append(Scores(np.arange(10), bits.sum(1), sizes.sum(1), np.array([0, 8, 16, 32]), bits, sizes))
        last = positions(runs, [runs])[2]
        assert last[:2] == (16, 32)
        change = beyond(runs, [runs], 16)
        assert change is not None
        assert change[:2] == ((8, 16), (16, 32))
        held += [last[2].low <= 2.0 <= last[2].high, change[2].low <= 0.0 <= change[2].high]
    assert ((held / 300 > 0.91) & (held / 300 < 0.985)).all()
    assert beyond(runs, [runs], 32) is None
    few = [run._replace(**{k: v[:5] for k, v in run._asdict().items() if k != "bins"}) for run in runs]
    assert beyond(few, [few], 16) is None


def test_without_repetitions_a_small_difference_is_not_sure_however_many_documents_agree() -> None:
    base = np.random.default_rng(0).normal(2000, 100, 200)
    near, far = scores(base * (1 + 0.9 * ASSUMED_SPREAD)), scores(base * (1 + 1.2 * ASSUMED_SPREAD))
    assert not difference([near], [scores(base)], UNKNOWN).sure
    found = difference([far], [scores(base)], UNKNOWN)
    assert found.sure
    assert found.low > 0
    turned = difference([scores(base)], [far], UNKNOWN)
    assert (turned.value, turned.low, turned.high) == pytest.approx((-found.value, -found.high, -found.low), rel=1e-3)


def test_half_widths_add_as_squares() -> None:
    base = np.full(50, 2000.0)
    # All documents differ by the same .05: the documents' interval has no width, and the seeds' is all.
    found = difference([scores(base + 50)], [scores(base)], UNKNOWN)
    assert found.value == pytest.approx(0.05)
    assert found.high - found.value == pytest.approx(ASSUMED_SPREAD * 2.0)
    repeated = difference([scores(base + 50)] * 2, [scores(base)] * 2, SeedSpread(0.01, 2))
    assert repeated.value - repeated.low == pytest.approx(4.303 * 0.01 * math.sqrt(1 / 2 + 1 / 2))
    fixed = difference([scores(base + 50)] * 2, [scores(base)], SeedSpread(0.01, 2), b_has_seed=False)
    assert fixed.value - fixed.low == pytest.approx(4.303 * 0.01 * math.sqrt(1 / 2))


def test_documents_widen_the_interval() -> None:
    generator = np.random.default_rng(1)
    base = generator.normal(2000, 300, 60)
    noisy = scores(base + generator.normal(50, 100, 60))
    found = difference([noisy], [scores(base)], SeedSpread(0.0, 10))
    expected = 1.96 * 0.1 / math.sqrt(60)
    assert (found.high - found.low) / 2 == pytest.approx(expected, rel=0.25)


def test_one_document_tells_nothing() -> None:
    found = difference([scores(np.array([9000.0]))], [scores(np.array([1000.0]))], UNKNOWN)
    assert (found.low, found.high) == (-math.inf, math.inf)
    assert not found.sure


def test_equal_candidates_are_called_equal_nineteen_times_in_twenty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intervals, "RESAMPLES", 100)
    generator = np.random.default_rng(2)
    trials, sure = 200, 0
    for _ in range(trials):
        base = generator.normal(2000, 200, 30)
        # Four candidates with two runs each, all of the same quality: a seed moves a whole run.
        runs = [[scores(base * (1 + generator.normal(0, 0.005))) for _ in range(2)] for _ in range(4)]
        sure += difference(runs[0], runs[1], seed_spread(runs)).sure
    assert sure / trials < 0.09
