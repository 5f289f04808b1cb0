"""Results of a comparison made up for tests of what is said and drawn of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["candidate", "results"]


def candidate(
    name: str,
    bits: float,
    *,
    training: float = 10_000.0,
    generation: float = 500.0,
    native: float | None = None,
    state: tuple[int, int] = (1_000, 1_000),
    beyond: float | None = None,
    rate: float = 0.01,
    edge: str | None = None,
    diverged: Sequence[float] = (),
    known: bool = True,
    bigram: float = 3.5,
) -> dict[str, Any]:
    """A candidate of `bits` per byte.

    Args:
        name, bits, training, generation: name, quality, tokens per second.
        native: how many times as fast as on the portable path; None without native kernels.
        state: bytes after the shortest and the longest reading.
        beyond: bits per byte past the trained length; None where nothing was measured there.
        rate, edge, diverged: the learning rate chosen, whether it was at an edge, and rates that diverged.
        known: whether there was more than one document.
        bigram: bits per byte of the table that it is held against.
    """
    layers, shape = name.partition(" ")[0], {"width": 48, "mixers": {}, "mlps": {"swiglu": {"hidden": 128}}}

    def interval(value: float, half: float = 0.01) -> dict[str, float | None]:
        return {"value": value, "low": value - half if known else None, "high": value + half if known else None}

    def speed(value: float) -> dict[str, float]:
        return {"median": value, "low": 0.98 * value, "high": 1.02 * value}

    places = [(0, 8, bits + 1), (8, 128, bits + 0.2), (128, 256, bits)]
    if beyond is not None:
        places += [(256, 512, (bits + beyond) / 2), (512, 1024, beyond)]
    return {
        "name": name,
        "folder": f"models/{name.replace(' ', '-')}",
        "parameters": 150_000,
        "config": {"layers": [layers] * 4, **shape},
        "learning_rate": {
            "chosen": rate,
            "tried": [
                {"rate": r, "bits_per_byte": None if r in diverged else 3.0, "reason": None} for r in (rate, *diverged)
            ],
            "edge": edge,
        },
        "bits_per_byte": interval(bits),
        "runs": [bits],
        "by_position": [{"from": low, "to": high, **interval(value)} for low, high, value in places],
        "beyond": None
        if beyond is None
        else {"near": {"from": 128, "to": 256}, "far": {"from": 512, "to": 1024}, **interval(beyond - bits, 0.02)},
        "curve": {"tokens": [1000 * i for i in range(1, 31)], "bits": [bits + 3 / i for i in range(1, 31)]},
        "flops": {"training": 1_000_000, "generation": 300_000},
        "memory": [{"context": 256, "bytes": state[0]}, {"context": 4096, "bytes": state[1]}],
        "speed": {
            "training": speed(training),
            "native": speed(native) if native else None,
            "generation": [{"context": 256, **speed(generation)}, {"context": 4096, **speed(generation)}],
        },
        "against_bigrams": interval(bits - bigram, 0.02),
        "sample": {"prompt": "import <b>", "text": "os & sys\n"},
    }


def results(
    *candidates: Mapping[str, Any],
    margin: float = 0.02,
    seeds: int = 1,
    spread: tuple[float | None, int] = (None, 0),
    gzip: float = 1.9,
    bigram: float = 3.5,
    parts: int | None = None,
    documents: int = 30,
    tokens: int = 700_000,
    passes: float = 0.1,
    rates: Sequence[float] = (0.01,),
    tokenizer: str = "bytes",
) -> dict[str, Any]:
    """Results of these candidates, the verdict apart; differences above `margin` are sure."""
    differences = []
    for i, a in enumerate(candidates):
        for b in candidates[:i]:
            value = a["bits_per_byte"]["value"] - b["bits_per_byte"]["value"]
            ends = {"low": value - margin, "high": value + margin}
            differences.append({"a": a["name"], "b": b["name"], "value": value, **ends, "sure": abs(value) > margin})
    sizes = {"documents": documents, "tokens": 600_000, "bytes": 600_000}
    return {
        "format": 1,
        "versions": {"lavagna": "0.1.0", "torch": "2.13.0", "python": "3.11.7"},
        "machine": {"processor": "a processor", "threads": 2, "device": "cpu"},
        "settings": {
            "parameters": 150_000,
            "context": 256,
            "seeds": seeds,
            "rounds": 5,
            "learning_rates": list(rates),
            "search": 0.1,
        },
        "data": {
            "source": ["log.txt"],
            "tokenizer": tokenizer,
            "training": sizes,
            "tune": sizes,
            "held_out": sizes,
            "tokens_per_run": tokens,
            "passes": passes,
            "scored_bytes": 100_000,
            "scored_documents": documents,
            "parts": parts,
        },
        "candidates": list(candidates),
        "differences": differences,
        "seed_spread": {"deviation": spread[0], "repeats": spread[1]},
        "baselines": {"bigram": {"value": bigram, "low": bigram - 0.02, "high": bigram + 0.02}, "gzip": gzip},
    }
