"""Two ways to ask what attention weights have to do with a prediction: change what they fetch, and change the weights.

The decoder is the one that learned to copy (attention-map shows its weights).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import Decoder, causal_mask, softmax
from ...scratch.arrays import Array, Tokens
from ...tasks import held_out
from .ablations import FULL, L
from .attention_map import INPUT
from .drawing import colour, heat
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

LAYERS, HEADS = range(FULL.shape.layers), range(FULL.shape.heads)
#: name -> layer and heads
PARTS: dict[str, tuple[int, tuple[int, ...]]] = {
    **{f"layer {layer + 1} head {head}": (layer, (head,)) for layer in LAYERS for head in HEADS},
    **{f"layer {layer + 1} all heads": (layer, tuple(HEADS)) for layer in LAYERS},
}
SEEN = causal_mask(2 * L)

#: layer, A (B, h, T, S), V (B, h, S, d_k) -> what is used in their place
Intervention = Callable[[int, Array, Array], tuple[Array, Array]]


def measure(work: Work) -> Values:
    (trained,) = work.trained([FULL])
    decoder = trained.decoder
    found = work.map(one_part, [(decoder, part) for part in PARTS])
    values: Values = {"parts": dict(zip(PARTS, found, strict=True))}
    # The map of one sequence, learned and put in its place, for the eye.
    tokens = np.array([INPUT])
    _, run = decoder.forward(tokens)
    logits, other = decoder.forward(tokens, intervene=distant("layer 2 all heads"))
    values["maps"] = {
        "learned": np.round(run.weights[1][0], 4).tolist(),
        "distant": np.round(other.weights[1][0], 4).tolist(),
        "answer": logits[0, L:].argmax(-1).tolist(),
    }
    return values


def one_part(piece: tuple[Decoder, str], tick: Tick) -> Values:
    decoder, part = piece
    layer, heads = PARTS[part]
    prompts, symbols = held_out("copy", L)
    tokens = np.concatenate([prompts, symbols[:, :-1]], 1)
    logits, run = decoder.forward(tokens)
    A = run.weights[layer][:, heads, L:]  # (B, heads, L, S): the rows that answer
    six_back = A[:, :, np.arange(L), np.arange(L)]  # query L + i, key i
    return {
        "weight": float(six_back.mean()),
        **_swapped(decoder, part, tokens, symbols),
        **_distant(decoder, part, tokens, softmax(logits[:, L:]), A),
    }


def _swapped(decoder: Decoder, part: str, tokens: Tokens, symbols: Tokens) -> Values:
    """Swap two symbols' values and see which answers swap, over all pairs of places."""
    followed, stayed, others = [], [], []
    for i, j in combinations(range(L), 2):
        answer = decoder.forward(tokens, intervene=swap(part, i, j))[0][:, L:].argmax(-1)
        differ = symbols[:, i] != symbols[:, j]
        pair, rest = [i, j], [place for place in range(L) if place not in (i, j)]
        followed.append((answer[:, pair] == symbols[:, [j, i]])[differ].mean())
        stayed.append((answer[:, pair] == symbols[:, pair])[differ].mean())
        others.append((answer[:, rest] == symbols[:, rest])[differ].mean())
    return {"followed": float(np.mean(followed)), "stayed": float(np.mean(stayed)), "others": float(np.mean(others))}


def _distant(decoder: Decoder, part: str, tokens: Tokens, p: Array, A: Array) -> Values:
    """Put all weight on the key that had least, and see what becomes of the predictions p (B, L, vocab)."""
    logits, _ = decoder.forward(tokens, intervene=distant(part))
    q = softmax(logits[:, L:])
    moved = 0.5 * np.abs(A - _elsewhere(A)).sum(-1)  # total variation: 1 where nothing stayed
    return {
        "distance": float(moved.mean()),
        "same": float((q.argmax(-1) == p.argmax(-1)).mean()),
        "changed": float((0.5 * np.abs(p - q).sum(-1)).mean()),
    }


def swap(part: str, i: int, j: int) -> Intervention:
    """The keys i and j keep their weights, and each hands out the other's value."""
    layer, heads = PARTS[part]

    def intervene(at: int, A: Array, V: Array) -> tuple[Array, Array]:
        if at == layer:
            V = V.copy()
            for head in heads:
                V[:, head, [i, j]] = V[:, head, [j, i]]
        return A, V

    return intervene


def distant(part: str) -> Intervention:
    """The rows that answer look where they looked least."""
    layer, heads = PARTS[part]

    def intervene(at: int, A: Array, V: Array) -> tuple[Array, Array]:
        if at == layer:
            A = A.copy()
            A[:, heads, L:] = _elsewhere(A[:, heads, L:])
        return A, V

    return intervene


def _elsewhere(A: Array) -> Array:
    """For rows (..., L, S) of the answers: all weight on the visible key that has least."""
    return np.eye(2 * L)[np.where(SEEN[L:], A, np.inf).argmin(-1)]


def tables(values: Values) -> dict[str, Table]:
    parts = values["parts"].items()
    swapped = [
        (part, f"{at['weight']:.3f}", f"{at['followed']:.3f}", f"{at['stayed']:.3f}", f"{at['others']:.3f}")
        for part, at in parts
    ]
    moved = [(part, f"{at['distance']:.3f}", f"{at['same']:.3f}", f"{at['changed']:.4f}") for part, at in parts]
    return {
        "swapped": Table(
            ("values swapped in", "weight six back", "answer follows", "answer stays", "others stay"), swapped
        ),
        "distant": Table(("weights moved in", "distance", "same prediction", "change of probabilities"), moved),
    }


def _draw_parts(values: Values, axes: list[Axes]) -> None:
    columns = (("weight", "weight six back"), ("followed", "answers that follow the swapped value"))
    places = np.arange(len(PARTS))
    for i, (name, label) in enumerate(columns):
        heights = [at[name] for at in values["parts"].values()]
        axes[0].bar(places + (i - 0.5) * 0.38, heights, 0.36, label=label, color=colour(i))
    names = [part.replace("layer ", "").replace(" head ", "·").replace(" all heads", "·all") for part in PARTS]
    axes[0].set_xticks(places, names)
    axes[0].grid(axis="x", visible=False)
    axes[0].set(xlabel="layer · head", ylabel="share", ylim=(0, 1.3))
    axes[0].legend(ncols=2, loc="upper right")


def _draw_maps(values: Values, axes: list[Axes]) -> None:
    for head in HEADS:
        for column, name in enumerate(("learned", "distant")):
            panel = axes[2 * head + column]
            heat(panel, values["maps"][name][head])
            panel.set_title(f"head {head}, {name}", fontsize=8)
            panel.set_xticks([])
            panel.set_yticks([])


PARTS_WORDS = (
    "For each head, the weight that its map puts six back, and the share of answers that follow a swapped value"
)
MAPS_WORDS = (
    "Weights of layer 2 on one sequence, learned and moved: the maps have nothing in common, the answers are equal"
)
EXPERIMENT = Experiment(
    measure,
    tables,
    {
        "parts": Drawing(PARTS_WORDS, _draw_parts),
        "maps": Drawing(MAPS_WORDS, _draw_maps, panels=(1,) * 2 * len(HEADS), height=1.6),
    },
)
