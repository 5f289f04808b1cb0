"""What memories of fixed size keep of the pairs that were written into them; nothing is trained.

Keys are random unit vectors, values too. After the last write each key is asked for its value: by the squared error of
the answer, beside that of answering nothing, and by whether the nearest of all values is the right one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...scratch.arrays import Array
from ...scratch.memory import MEMORIES, run
from .drawing import FAINT, line
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

TRIALS = 20
DECAY = 0.99

#: name -> the memory, and what it is told beside q, k, v
RULES = ("sum", "decay", "delta", "gated delta")
TITLES = {"sum": "sum", "decay": f"decay {DECAY}", "delta": "delta rule", "gated delta": f"delta rule, decay {DECAY}"}


class Case(NamedTuple):
    """What is written: `pairs` different keys; first `rewrites` times each with values that are replaced later; and
    behind them `distractors` other pairs, of `kinds` different keys (0: each its own)."""

    d: int
    pairs: int
    rewrites: int = 0
    distractors: int = 0
    kinds: int = 0
    seed: int = 0


REWRITTEN = {str(times): Case(64, 16, rewrites=times) for times in (0, 1, 3, 7)}
DISTRACTORS = (0, 32, 64, 128, 256, 512)
REPEATED = {str(m): Case(64, 16, distractors=m, kinds=8) for m in DISTRACTORS}
DISTINCT = {str(m): Case(64, 16, distractors=m) for m in DISTRACTORS}
SIZES = (16, 32, 64, 128)
SHARES = (0.25, 0.5, 1.0, 2.0)  # pairs beside d
CAPACITY = {f"{d} {int(share * d)}": Case(d, int(share * d)) for d in SIZES for share in SHARES}
RANKING = {"128": Case(64, 128)}
GROUPS = {
    "rewritten": REWRITTEN,
    "repeated": REPEATED,
    "distinct": DISTINCT,
    "capacity": CAPACITY,
    "ranking": RANKING,
}


def measure(work: Work, *, groups: Sequence[str] = tuple(GROUPS)) -> Values:
    cases = dict.fromkeys(case for group in groups for case in GROUPS[group].values())  # each once
    pieces = [(case, rule) for case in cases for rule in RULES]
    pieces.sort(key=lambda piece: -_writes(piece[0]) * piece[0].d ** 2)
    found = dict(zip(pieces, work.map(remembered, pieces), strict=True))
    return {
        group: {name: {rule: found[case, rule] for rule in RULES} for name, case in GROUPS[group].items()}
        for group in groups
    }


def _writes(case: Case) -> int:
    return case.pairs * (1 + case.rewrites) + case.distractors


def remembered(piece: tuple[Case, str], tick: Tick) -> Values:
    case, rule = piece
    keys, values, asked, right = written(case)
    T = len(keys)
    S = np.zeros((TRIALS, case.d, case.d))
    beta, alpha = np.ones((T, TRIALS)), np.full((T, TRIALS), DECAY)
    if rule == "sum":
        _, S = run(MEMORIES["linear_attention"], S, keys, keys, values)
    elif rule == "decay":
        _, S = run(MEMORIES["retnet"], S, keys, keys, values, gamma=np.full(TRIALS, DECAY))
    elif rule == "delta":
        _, S = run(MEMORIES["delta_rule"], S, keys, keys, values, beta)
    else:
        _, S = run(MEMORIES["gated_deltanet"], S, keys, keys, values, beta, alpha)
    answers = np.einsum("bkv,bnk->bnv", S, asked)
    distances = (right**2).sum(-1)[:, None] - 2 * np.einsum("bnv,bmv->bnm", answers, right)
    return {
        "error": float(((answers - right) ** 2).sum(-1).mean()),
        "nearest": float((distances.argmin(-1) == np.arange(case.pairs)).mean()),
    }


def written(case: Case) -> tuple[Array, Array, Array, Array]:
    """Keys and values in the order of writing (T, trials, d); the keys that are asked for and their last values
    (trials, pairs, d)."""
    rng = np.random.default_rng([case.seed, case.d, case.pairs, case.rewrites, case.distractors, case.kinds])
    asked = _unit(rng, TRIALS, case.pairs, case.d)
    values = _unit(rng, TRIALS, case.rewrites + 1, case.pairs, case.d)
    others = _unit(rng, TRIALS, case.kinds or case.distractors, case.d)
    if case.kinds:
        others = others[:, np.arange(case.distractors) % case.kinds]
    other_values = _unit(rng, TRIALS, case.distractors, case.d)
    keys = np.concatenate([np.tile(asked, (1, case.rewrites + 1, 1)), others], 1)
    written_values = np.concatenate([values.reshape(TRIALS, -1, case.d), other_values], 1)
    return keys.swapaxes(0, 1), written_values.swapaxes(0, 1), asked, values[:, -1]


def _unit(rng: np.random.Generator, *shape: int) -> Array:
    x = rng.normal(size=shape)
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


METRICS = {"error": ("squared error", 2), "nearest": ("nearest is right", 3)}
#: group -> what its cases differ in, beside d and the number of keys
DIFFERENCE: dict[str, tuple[str, Callable[[Case], str]]] = {
    "rewritten": ("each rewritten", lambda case: str(case.rewrites)),
    "repeated": ("distractors, of 8 keys", lambda case: str(case.distractors)),
    "distinct": ("distractors, all different", lambda case: str(case.distractors)),
    "capacity": ("keys / d", lambda case: f"{case.pairs / case.d:g}"),
    "ranking": ("each rewritten", lambda case: str(case.rewrites)),
}


def tables(values: Values) -> dict[str, Table]:
    return {group: _table(group, found) for group, found in values.items()}


def _table(group: str, found: Values) -> Table:
    title, difference = DIFFERENCE[group]
    rows = [
        (
            metric,
            str(case.d),
            str(case.pairs),
            difference(case),
            *(f"{found[name][rule][key]:.{digits}f}" for rule in RULES),
        )
        for key, (metric, digits) in METRICS.items()
        for name, case in GROUPS[group].items()
    ]
    return Table(("metric", "d", "keys", title, *TITLES.values()), rows)


def _draw_distractors(values: Values, axes: list[Axes]) -> None:
    for panel, (group, title) in zip(
        axes, (("repeated", "distractors of 8 keys"), ("distinct", "each distractor its own key")), strict=True
    ):
        for i, rule in enumerate(RULES):
            nearest = [values[group][str(m)][rule]["nearest"] for m in DISTRACTORS]
            panel.plot(DISTRACTORS, nearest, label=TITLES[rule], **line(i, marker=True))
        panel.axhline(1 / 16, color=FAINT, linewidth=1)
        panel.set(title=title, xlabel="distractors", ylim=(0, 1.05))
    axes[0].set_ylabel("nearest value is right")
    axes[1].legend(loc="center right", bbox_to_anchor=(1, 0.62))


def _draw_capacity(values: Values, axes: list[Axes]) -> None:
    for panel, (metric, title) in zip(
        axes, (("error", "squared error"), ("nearest", "nearest value is right")), strict=True
    ):
        for i, rule in enumerate(RULES):
            at = [values["capacity"][f"64 {int(64 * share)}"][rule][metric] for share in SHARES]
            panel.plot(SHARES, at, label=TITLES[rule], **line(i, marker=True))
        panel.set_xscale("log", base=2)
        panel.set_xticks(SHARES, [str(int(64 * share)) for share in SHARES])
        panel.set(title=title, xlabel="keys, d = 64", ylim=(0, None))
    axes[0].legend()


DISTRACTORS_WORDS = (
    "Share of right answers against distractors: the delta rule stands where their keys repeat, falls where not"
)
CAPACITY_WORDS = (
    "Squared error and share of right answers against keys: the two rank sum and delta rule the other way round"
)
EXPERIMENT = Experiment(
    measure,
    tables,
    {
        "distractors": Drawing(DISTRACTORS_WORDS, _draw_distractors, panels=(1, 1)),
        "capacity": Drawing(CAPACITY_WORDS, _draw_capacity, panels=(1, 1)),
    },
)
