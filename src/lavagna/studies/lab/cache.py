"""Generation with a key–value cache and without, and what the cache holds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...scratch import Heads, LayerCache, cache_bytes, causal_mask, multi_head
from .drawing import line
from .experiment import Drawing, Experiment, Table, Values
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["EXPERIMENT", "measure"]

WIDTH, HEADS, LAYERS = 256, Heads(8, 8), 4
PROMPT, NEW = 32, 128
ROUNDS = 6  # of which each token's fastest counts


def measure(work: Work, *, new: int = NEW) -> Values:
    return {
        **work.map(both_ways, [new])[0],
        "cache_mib": cache_bytes(LAYERS, HEADS.groups, WIDTH // HEADS.h, PROMPT + NEW) / 2**20,
        "large_gib": cache_bytes(32, 32, 128, 4096, 2) / 2**30,
        "large_one_group_gib": cache_bytes(32, 1, 128, 4096, 2) / 2**30,
    }


class Model:
    """Four layers of attention and residual, without positions: it reads vectors and says one for each."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layers: list[Mapping[str, np.ndarray]] = [
            {name: rng.normal(size=(WIDTH, WIDTH)) / math.sqrt(WIDTH) for name in ("Wq", "Wk", "Wv", "Wo")}
            | {name: np.zeros(WIDTH) for name in ("bq", "bk", "bv", "bo")}
            for _ in range(LAYERS)
        ]

    def __call__(self, x: np.ndarray, caches: list[LayerCache] | None = None) -> np.ndarray:
        T = x.shape[1]
        # A token that is read alone is the last one: it sees everything.
        seen = causal_mask(T, T + caches[0].length if caches else T) if T > 1 else None
        for layer, p in enumerate(self.layers):
            x = x + multi_head(x, p, HEADS, seen, cache=caches[layer] if caches else None)[0]
        return x

    def generate(self, prompt: np.ndarray, new: int, *, cached: bool) -> tuple[np.ndarray, list[float]]:
        """The prompt and `new` vectors, each the last output at length √d; and the seconds of each."""
        caches = [LayerCache(1, HEADS.groups, PROMPT + new, WIDTH // HEADS.h) for _ in range(LAYERS)]
        whole, read, seconds = prompt, prompt, []
        for _ in range(new):
            begin = time.process_time()
            y = self(read, caches if cached else None)[:, -1:]
            y = y * (math.sqrt(WIDTH) / np.linalg.norm(y))
            whole = np.concatenate([whole, y], 1)
            read = y if cached else whole
            seconds.append(time.process_time() - begin)
        return whole, seconds


def both_ways(new: int, tick: Tick) -> Values:
    rng = np.random.default_rng(5)
    model = Model(rng)
    prompt = rng.normal(size=(1, PROMPT, WIDTH))
    seconds = {True: np.full(new, np.inf), False: np.full(new, np.inf)}
    outputs = {}
    for i in range(ROUNDS):
        for cached in (True, False):
            outputs[cached], taken = model.generate(prompt, new, cached=cached)
            seconds[cached] = np.minimum(seconds[cached], taken)  # each token's fastest
        tick((i + 1) / ROUNDS)
    with_cache, without = seconds[True], seconds[False]
    return {
        "gap": float(np.abs(outputs[True] - outputs[False]).max()),
        "seconds": {"without": without.tolist(), "with": with_cache.tolist()},
        "faster": float(without.sum() / with_cache.sum()),
    }


def tables(values: Values) -> dict[str, Table]:
    without, with_cache = (sum(values["seconds"][way]) for way in ("without", "with"))
    times = [(f"{without:.2f} s", f"{with_cache:.3f} s", f"{values['faster']:.0f} times")]
    memory = [
        ("this model, T = 160, float64", f"{values['cache_mib']:.2f} MiB"),
        ("32 layers, 32 heads of 128, T = 4096, float16", f"{values['large_gib']:.3f} GiB"),
        ("the same with one head of keys and values", f"{values['large_one_group_gib']:.3f} GiB"),
    ]
    return {
        "times": Table(("without cache", "with cache", "faster"), times),
        "memory": Table(("model", "cache"), memory),
    }


def _draw(values: Values, axes: list[Axes]) -> None:
    for i, (way, seconds) in enumerate(values["seconds"].items()):
        # The first token reads the prompt, either way.
        tokens = range(PROMPT + 2, PROMPT + 1 + len(seconds))
        axes[0].plot(tokens, [at * 1e3 for at in seconds[1:]], label=f"{way} cache", **line(i))
    axes[0].set_yscale("log")
    axes[0].set(xlabel="place of the new token", ylabel="ms")
    axes[0].legend()


WORDS = "Milliseconds of each new token, one thread: without the cache they grow with the text, with it hardly"
EXPERIMENT = Experiment(measure, tables, {"times": Drawing(WORDS, _draw)})
