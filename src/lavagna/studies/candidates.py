"""Candidates: architectures under comparison, each a pattern of layers with a name and a name for files."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

from ..errors import ConfigError
from ..models import expand_layers

__all__ = ["Candidate", "parse_candidates"]


class Candidate(NamedTuple):
    """An architecture under comparison.

    Fields:
        name: the pattern as it was given; a repeated one is called "attention (2)".
        pattern: names of mixers, of which the layers are a whole number of repetitions.
        folder: the name in letters that file systems and shells leave alone.
    """

    name: str
    pattern: tuple[str, ...]
    folder: str


def parse_candidates(text: str) -> list[Candidate]:
    """Read a comma-separated list of patterns ("attention,mamba,3*gated_deltanet+attention").

    Raises:
        ConfigError: no candidate, or something that is no pattern.
    """
    patterns = ["".join(part.split()) for part in text.split(",")]
    if "" in patterns:
        raise ConfigError(f"candidates: expected patterns of layers between commas, got {text!r}")
    seen: Counter[str] = Counter()
    candidates: list[Candidate] = []
    for pattern in patterns:
        seen[pattern] += 1
        count = seen[pattern]
        folder = re.sub(r"[()]+", "-", pattern.replace("*", "x")).strip("-")
        while any(folder == other.folder for other in candidates):
            folder += "-2"
        name = pattern if count == 1 else f"{pattern} ({count})"
        candidates.append(Candidate(name, expand_layers(pattern), folder))
    return candidates
