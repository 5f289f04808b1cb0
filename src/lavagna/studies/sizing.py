"""A fair size: for each candidate the depth, the width and the inner widths that give a number of parameters."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import nn

from ..errors import ConfigError
from ..models import LanguageModel, LanguageModelConfig
from .candidates import Candidate

__all__ = ["TOLERANCE", "Sized", "count_parameters", "fit"]

#: from the target: two candidates then differ by 3 % at most
TOLERANCE = 0.015
#: widths and inner widths are multiples of the first of these with which the target is met: machines like round
#: numbers, and heads divide them
GRAINS = (8, 4, 2, 1)
#: how far an inner width may be from its default: beyond, it would be another architecture
STRETCH = 2.0
WIDTHS_TRIED = 6
REFUSED_AT_MOST = 64  # widths in a row that a mixer may refuse before there are none


class Sized(NamedTuple):
    """A configuration and its number of parameters."""

    config: LanguageModelConfig
    parameters: int


def fit(
    candidate: Candidate, *, parameters: int, depth: int, vocab_size: int, options: Mapping[str, Any] | None = None
) -> Sized:
    """Solve a candidate's width, then its inner widths, so that the model has about `parameters` parameters.

    The pattern is repeated to about `depth` full layers, a block without MLP counting as half a one. Of the widths
    whose model with default inner widths comes nearest, the first is taken with which all inner widths, times one
    factor, meet the target within 1.5 %. An inner width is an MLP's hidden one or, in a block without MLP, the
    mixer's (``Mixer.inner_option``); one that `options` gives is left alone.

    Args:
        candidate: what is repeated.
        parameters: the target.
        depth: full layers.
        vocab_size: number of tokens.
        options: other fields of LanguageModelConfig; those for mixers and MLPs that this candidate has not are
            left out.

    Raises:
        ConfigError: no model of this depth meets the target.
    """
    base = {"vocab_size": vocab_size, **_relevant(candidate, options or {})}
    layers = _layers(candidate, depth, base)
    widths = _Widths(base, layers)
    for grain in GRAINS:
        for width in widths.near(parameters, grain):
            found = widths.stretched(width, grain, parameters)
            if found is not None:
                return found
    if widths.refusal is not None and not widths.any_allowed:
        raise widths.refusal
    raise ConfigError(
        f"no width of {candidate.name!r} gives {parameters:,} parameters within {100 * TOLERANCE:g} % with "
        f"{len(layers)} blocks and {vocab_size:,} tokens; change the number of parameters or the depth"
    )


def count_parameters(config: LanguageModelConfig) -> int:
    """Parameters of a model, which is not built: each kind of block is, once, and without memory."""
    return _count(config, _kinds(config))


def _relevant(candidate: Candidate, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without what they say of mixers and MLPs that the candidate has not."""
    names = set(candidate.pattern)
    found = dict(options)
    for key in ("mixers", "mlp"):
        if isinstance(found.get(key), Mapping):
            found[key] = {name: value for name, value in found[key].items() if name in names}
    if "mlps" in found:
        probe = LanguageModelConfig.parse(
            {"vocab_size": 1, "width": 8, "layers": candidate.pattern, "mlp": found.get("mlp", "published")}
        )
        used = {probe.mlp_of(name) for name in names}
        found["mlps"] = {name: value for name, value in found["mlps"].items() if name in used}
    return found


def _layers(candidate: Candidate, depth: int, base: Mapping[str, Any]) -> tuple[str, ...]:
    """The pattern, repeated until its half layers come nearest to 2 · depth."""
    config = LanguageModelConfig.parse({**base, "width": 8, "layers": candidate.pattern})
    halves = sum(1 if config.mlp_of(name) is None else 2 for name in candidate.pattern)
    return candidate.pattern * max(round(2 * depth / halves), 1)


class _Default(NamedTuple):
    """A model as its width alone makes it: parameters, and the inner widths that may be changed."""

    parameters: int
    inner: dict[tuple[str, str, str], int]  # ("mlps" or "mixers", name, option) -> default


class _Widths:
    """The models of each width, of which some are refused (heads do not divide it, say)."""

    def __init__(self, base: Mapping[str, Any], layers: tuple[str, ...]) -> None:
        self.base, self.layers = base, layers
        self.default = cache(self._default)
        self.any_allowed = False
        self.refusal: ConfigError | None = None

    def _default(self, width: int) -> _Default | None:
        """The model with default inner widths; None where it is refused."""
        config = LanguageModelConfig.parse({**self.base, "width": width, "layers": self.layers})
        try:
            model = _kinds(config)
        except ConfigError as error:
            self.refusal = error
            return None
        self.any_allowed = True
        inner = {}
        for name, block in zip(model.config.layers, model.stack(), strict=True):
            mlp = config.mlp_of(name)
            table, key, part = ("mixers", name, block.mixer) if mlp is None else ("mlps", mlp, block.mlp)
            assert part is not None
            if part.inner_option is not None and part.inner_option not in self.base.get(table, {}).get(key, {}):
                inner[table, key, part.inner_option] = cast("nn.Linear", part.out_proj).in_features
        return _Default(_count(config, model), inner)

    def near(self, parameters: int, grain: int) -> list[int]:
        """Multiples of `grain` whose default models come nearest to a number of parameters, the nearest first."""

        def too_few(multiple: int) -> bool:
            allowed = (self.default(grain * further) for further in range(multiple, multiple + REFUSED_AT_MOST))
            first = next(filter(None, allowed), None)
            return first is not None and first.parameters < parameters

        low, high = 0, 1
        while too_few(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if too_few(middle) else (low, middle)
        around = range(max(high - WIDTHS_TRIED, 1), high + WIDTHS_TRIED)
        counts = {
            grain * multiple: found.parameters for multiple in around if (found := self.default(grain * multiple))
        }
        return sorted(counts, key=lambda width: abs(counts[width] - parameters))[:WIDTHS_TRIED]

    def stretched(self, width: int, grain: int, parameters: int) -> Sized | None:
        """Multiply all inner widths by one factor so that the target is met; None where it cannot be."""
        default = self.default(width)
        assert default is not None

        @cache
        def sized(sizes: tuple[int, ...]) -> Sized | None:
            values = {**self.base, "width": width, "layers": self.layers}
            for (table, name, option), size in zip(default.inner, sizes, strict=True):
                options = dict(values.get(table, {}))
                values[table] = {**options, name: {**options.get(name, {}), option: size}}
            config = LanguageModelConfig.parse(values)
            try:
                return Sized(config, count_parameters(config))
            except ConfigError:
                return None

        tried = [sized(tuple(default.inner.values()))]
        low, high = 1 / STRETCH, STRETCH
        while default.inner and high - low > 1e-3:
            factor = (low + high) / 2
            found = sized(tuple(max(round(factor * size / grain), 1) * grain for size in default.inner.values()))
            if found is None:
                break
            tried.append(found)
            low, high = (factor, high) if found.parameters < parameters else (low, factor)
        fitting = [found for found in tried if found and abs(found.parameters - parameters) <= TOLERANCE * parameters]
        return min(fitting, key=lambda found: abs(found.parameters - parameters), default=None)


def _kinds(config: LanguageModelConfig) -> LanguageModel:
    """The model with each kind of block once, without memory for its tensors."""
    with torch.device("meta"):
        return LanguageModel(config.model_copy(update={"layers": tuple(dict.fromkeys(config.layers))}))


def _count(config: LanguageModelConfig, kinds: LanguageModel) -> int:
    """Parameters of the whole model: those of `kinds`, and of each block that it repeats."""

    def size(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    blocks = dict(zip(kinds.config.layers, map(size, kinds.stack()), strict=True))
    return size(kinds) - sum(blocks.values()) + sum(blocks[name] for name in config.layers)
