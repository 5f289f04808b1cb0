"""Where a token stands, read by a linear probe off the states of a decoder that was never told.

Nothing is trained here but the probe: a least-squares line from a state to the number of its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import Config, Decoder, block, causal_mask
from ...scratch.arrays import Array, Mask, Tokens
from .drawing import FAINT, colour, line
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

SYMBOLS, T = 20, 64
BEGINNING = 20  # one more token
SEQUENCES = 200  # to fit the probe, and as many to measure it
CONFIG = Config(vocab=SYMBOLS + 1, d=64, heads=4, layers=2, d_ff=256, t_max=T, position="none")
PLACES = ("embedding", "block 1", "block 2")
WINDOW = 8
SETTLED = 2 * (WINDOW - 1)  # from here on no query of either block sees fewer keys than WINDOW
RIDGE = 1e-3
SEEDS = (0, 1, 2)

#: what a query sees -> the mask, and the first position that is asked about: not 0, which its own token may give away
VIEWS: dict[str, tuple[Mask | None, int]] = {
    "causal": (causal_mask(T), 1),
    "causal, late": (causal_mask(T), SETTLED),
    "window, late": (causal_mask(T) & ~np.tri(T, T, -WINDOW, dtype=bool), SETTLED),
    "everything": (None, 1),
}
BEGINNINGS = ("unmarked", "marked")


def measure(work: Work, *, seeds: Sequence[int] = SEEDS, sequences: int = SEQUENCES) -> Values:
    pieces = [(beginning, seed, sequences) for beginning in BEGINNINGS for seed in seeds]
    found = dict(zip(pieces, work.map(one_decoder, pieces), strict=True))
    values: Values = {}
    for beginning in BEGINNINGS:
        each = [found[beginning, seed, sequences] for seed in seeds]
        values[beginning] = {
            "explained": {view: _over([one["explained"][view] for one in each]) for view in VIEWS},
            "changed": {place: max(one["changed"][place] for one in each) for place in PLACES},
            "probed": each[0]["probed"],
        }
    return values


def _over(found: list[dict[str, float]]) -> Values:
    """Least, mean and most of each entry."""
    each = {name: [one[name] for one in found] for name in found[0]}
    return {name: {"least": min(x), "mean": float(np.mean(x)), "most": max(x)} for name, x in each.items()}


def one_decoder(piece: tuple[str, int, int], tick: Tick) -> Values:
    beginning, seed, sequences = piece
    rng = np.random.default_rng(seed)
    decoder = Decoder(CONFIG, rng)
    tokens = rng.integers(0, SYMBOLS, (2 * sequences, T))
    if beginning == "marked":
        tokens[:, 0] = BEGINNING
    explained: dict[str, dict[str, float]] = {}
    probed: Values = {}
    for i, (view, (mask, first)) in enumerate(VIEWS.items()):
        position = np.arange(first, T, dtype=float)
        states = read(decoder, tokens, mask)
        found = {place: probe(x[:, first:], position) for place, x in zip(PLACES, states, strict=True)}
        explained[view] = {place: _explained(predicted, position) for place, predicted in found.items()}
        keys = np.log(position + 1)
        explained[view]["ln keys"] = _explained(probe(states[-1][:, first:], keys), keys)
        at = found[PLACES[-1]]
        probed[view] = {"mean": at.mean(0).round(3).tolist(), "deviation": at.std(0).round(3).tolist()}
        tick((i + 1) / len(VIEWS))
    return {"explained": explained, "probed": probed, "changed": changed(decoder, tokens[:sequences], rng)}


def _explained(predicted: Array, wanted: Array) -> float:
    """Share of the variance of what was wanted (T,) that predictions (B, T) explain; 0 for saying its mean."""
    return float(1 - ((predicted - wanted) ** 2).mean() / wanted.var())


def read(decoder: Decoder, tokens: Tokens, mask: Mask | None) -> list[Array]:
    """The states (B, T, d) before the first block and after each one, with any mask."""
    config = decoder.config
    states = [decoder.params["E"][tokens]]
    for layer in range(config.layers):
        states.append(block(states[-1], decoder.layer(layer), config.norm, config.attention, mask)[0])
    return states


def probe(states: Array, wanted: Array) -> Array:
    """Fit a line in the states (2 B, T, d) of half of the sequences to numbers (T,); what it says of the other half."""
    fit, other = np.split(states, 2)
    mean, deviation = fit.mean((0, 1)), fit.std((0, 1)) + 1e-9

    def rows(x: Array) -> Array:
        flat = ((x - mean) / deviation).reshape(-1, x.shape[-1])
        return np.concatenate([flat, np.ones((len(flat), 1))], 1)

    X = rows(fit)
    w = np.linalg.solve(X.T @ X + RIDGE * np.eye(X.shape[1]), X.T @ np.tile(wanted, len(fit)))
    return (rows(other) @ w).reshape(other.shape[:2])


def changed(decoder: Decoder, tokens: Tokens, rng: np.random.Generator) -> dict[str, float]:
    """How far the last token's state moves, beside its length, when all tokens between it and the first one permute."""
    other = tokens.copy()
    other[:, 1:-1] = rng.permuted(tokens[:, 1:-1], axis=1)
    moved = {}
    mask = causal_mask(T)
    for place, x, y in zip(PLACES, read(decoder, tokens, mask), read(decoder, other, mask), strict=True):
        moved[place] = float(np.linalg.norm((x - y)[:, -1]) / np.linalg.norm(x[:, -1]))
    return moved


TITLES = {
    "causal": "all before it",
    "causal, late": f"the same, positions {SETTLED} to {T - 1}",
    "window, late": f"the last {WINDOW}, positions {SETTLED} to {T - 1}",
    "everything": "all, later ones too",
}
COLUMNS = (*PLACES, "ln keys")


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (title, beginning, *(f"{values[beginning]['explained'][view][name]['mean']:.3f}" for name in COLUMNS))
        for beginning in BEGINNINGS
        for view, title in TITLES.items()
    ]
    moved = [(place, f"{values['unmarked']['changed'][place]:.1e}") for place in PLACES]
    titles = ("a token sees", "first token", *PLACES, "block 2, ln of the keys seen")
    return {
        "explained": Table(titles, rows),
        "changed": Table(("state after", "change when earlier tokens permute"), moved),
    }


def _draw(values: Values, axes: list[Axes]) -> None:
    for panel, view in zip(axes, ("causal", "window, late", "everything"), strict=True):
        first = VIEWS[view][1]
        panel.plot([0, T - 1], [0, T - 1], color=FAINT, linewidth=1)
        for i, beginning in enumerate(BEGINNINGS):
            probed = values[beginning]["probed"][view]
            mean, deviation = np.array(probed["mean"]), np.array(probed["deviation"])
            panel.plot(range(first, T), mean, label=f"{beginning} beginning", **line(i))
            panel.fill_between(
                range(first, T), mean - deviation, mean + deviation, color=colour(i), alpha=0.12, linewidth=0
            )
        panel.set_title(f"sees {TITLES[view].split(', pos')[0]}")
        panel.set(xlabel="position", xlim=(0, T - 1), ylim=(-6, T + 6))
    axes[0].set_ylabel("position, by the probe")
    axes[0].legend(loc="upper left")


WORDS = "Position as the probe reads it off block 2 against the true one: it rises with a causal mask alone"
EXPERIMENT = Experiment(measure, tables, {"probe": Drawing(WORDS, _draw, panels=(1, 1, 1))})
