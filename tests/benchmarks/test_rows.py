"""The benchmarks measure what they say: peers compute the same function, and rows are whole."""

from __future__ import annotations

import pytest
import torch

from benchmarks.__main__ import main, tell
from benchmarks.measure import Crossover, Microseconds, Ratio, Side, Slope, rate, slope
from benchmarks.peers import KIMI_CHUNKS, MAMBA2_CHUNKS, MAMBA_SCAN, MAMBAPY_SCAN, QWEN3_NEXT_CHUNKS, SDPA
from benchmarks.row import Row, at_least, at_most, between, record, run_row, shown, spread
from benchmarks.rows import ROWS, norm
from benchmarks.rows.delta import GATED, KDA
from benchmarks.rows.linear import LONG, MAMBA2
from benchmarks.rows.scan import S6
from benchmarks.workloads import PORTABLE, Executor, Workload, forward, forward_backward
from lavagna.ops.spec import specs
from tests.support.budget import close

SMALL_HEADS = {"T": 128, "H": 2, "HV": 2, "K": 16, "V": 16}


def test_names_are_unique_and_short_enough_for_a_line() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert max(map(len, names)) < 32


@pytest.mark.peers
@pytest.mark.parametrize(
    ("workload", "peer"),
    [
        (S6.resized(T=70, D=6), MAMBA_SCAN),
        (S6.resized(T=70, D=6), MAMBAPY_SCAN),
        (GATED.resized(**SMALL_HEADS), QWEN3_NEXT_CHUNKS),
        (KDA.resized(**SMALL_HEADS), KIMI_CHUNKS),
        (MAMBA2.resized(T=300, HV=3, K=8, V=5), MAMBA2_CHUNKS),
    ],
    ids=["mamba", "mambapy", "qwen3-next", "kimi", "mamba2"],
)
def test_a_peer_computes_the_same(workload: Workload, peer: Executor) -> None:
    ours, theirs = (forward(workload, executor)().run() for executor in (PORTABLE, peer))
    close("output", theirs, ours, 1e-5)
    gradients = forward_backward(workload, peer)().run()
    reached = {
        name: bool(g.isfinite().all() and g.any())
        for name, g in zip(peer.arrange(workload.draw()), gradients, strict=True)
    }
    assert all(reached.values()), reached


def test_attention_reads_the_same_sizes() -> None:
    workload = LONG.resized(T=9)
    ours, theirs = (forward(workload, executor)().run() for executor in (PORTABLE, SDPA))
    assert theirs.transpose(1, 2).shape == ours.shape


def test_both_sides_of_a_norm_compute_the_same() -> None:
    for make in (norm.forward, norm.forward_backward):
        ours, theirs = (make(impl).run() for impl in ("cpu", "torch"))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_a_rate_is_work_per_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that the calls themselves put forward: the first call of a turn is not counted, unless it is long."""
    now = 0.0
    monkeypatch.setattr("benchmarks.measure.time.perf_counter", lambda: now)

    def side(*seconds: float) -> Side:
        left = iter(seconds)

        def run() -> None:
            nonlocal now
            now += next(left)

        return Side(run, 6.0)

    assert rate(side(0.01, 0.02, 0.05, 0.01), 2) == pytest.approx(6 / 0.02)
    assert torch.get_num_threads() == 2
    assert rate(side(1.5), 1) == pytest.approx(4.0)
    assert torch.get_num_threads() == 1


def test_a_ratio_is_of_our_rate_to_theirs_each_on_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.rate", lambda side, threads: side.work * 10.0**threads)
    made = []

    def make(work: float) -> Side:
        return Side(lambda: made.append((work, torch.get_num_threads())), work)

    assert Ratio(lambda: make(80.0), lambda: make(5.0), threads=(2, 1), rounds=3)() == pytest.approx(3 * [160.0])
    assert made == [(80.0, 2), (5.0, 1)]


def test_a_crossover_is_the_first_length_from_which_on_we_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.rate", lambda side, threads: side.work if threads == 2 else 1 / side.work)

    def crossover(*ours: float) -> float:
        works = dict(zip((1, 2, 4), ours, strict=True))
        return Crossover(lambda T: lambda: Side(int, works[T]), lambda T: lambda: Side(int, 1.0), (1, 2, 4), 2)()[0]

    assert crossover(2, 2, 2) == 1
    assert crossover(0.5, 2, 2) == 2
    assert crossover(2, 0.5, 2) == 4
    assert crossover(2, 2, 0.5) == 8


def test_a_slope_is_the_exponent(monkeypatch: pytest.MonkeyPatch) -> None:
    assert slope({T: 3.0 * T**1.5 for T in (2, 4, 8)}) == pytest.approx(1.5)
    monkeypatch.setattr("benchmarks.measure.rate", lambda side, threads: 1 / side.work)
    assert Slope(lambda T: lambda: Side(int, float(T)), (10, 20, 40))() == pytest.approx(3 * [1.0])


def test_microseconds_are_of_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.measure.rate", lambda side, threads: side.work / 7e-6)
    assert Microseconds(lambda: Side(int, 3.0))() == pytest.approx(15 * [7.0 / 3])


def test_targets() -> None:
    assert at_least(2.0).met(2.0)
    assert not at_least(2.0).met(1.99)
    assert at_most(2.0, "µs").met(2.0)
    assert not between(0.97, 1.03).met(1.04)
    assert shown("×").met(0.0)
    assert [str(t) for t in (at_least(60), at_least(0.7, "%"), at_most(12, "µs"), between(0.97, 1.03))] == [
        "≥ 60 ×",
        "≥ 70 %",
        "≤ 12 µs",
        "1.00 ± 0.03",
    ]


def test_figures_have_a_median_and_quartiles() -> None:
    assert spread([5, 1, 3, 2, 4]) == {"median": 3, "low": 2, "high": 4, "rounds": 5}
    assert spread([7]) == {"median": 7, "low": 7, "high": 7, "rounds": 1}


def test_a_row_that_cannot_run_says_why() -> None:
    def broken() -> list[float]:
        raise RuntimeError("no\n  such kernel")

    row = Row("name", "work", "against", at_least(2), broken)
    found = run_row(row)
    assert found.error == "RuntimeError: no such kernel"
    assert "failed: RuntimeError: no such kernel" in tell(row, found)
    kept = record(row, found)
    assert (kept["figures"], kept["met"]) == (None, False)


def test_rows_are_listed_and_unknown_ones_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [row.name for row in ROWS]
    with pytest.raises(SystemExit):
        main(["no-such-row"])
    assert "no such row: no-such-row" in capsys.readouterr().err


def test_every_operator_has_cases_for_benchmarks() -> None:
    assert [spec.op for spec in specs() if not spec.bench] == []
