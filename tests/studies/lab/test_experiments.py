"""The experiments in their fast forms: what they can reproduce in seconds is held beside what is expected.

Whole are those that take seconds; of the others some seeds, lengths or steps are left out, and the figures that remain
are compared. None is judged by its times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel
from lavagna.scratch import Adam, batch, train_step
from lavagna.studies.lab import (
    ablations,
    attention_map,
    cache,
    copy_sort,
    copy_sort_torch,
    depth,
    equals_torch,
    gradcheck,
    heads,
    mask,
    memory,
    not_an_explanation,
    parameters,
    position_leak,
    quadratic,
    scale,
    why_scale,
)
from lavagna.studies.lab.drawing import draw
from lavagna.studies.lab.expectations import check, expected
from lavagna.studies.lab.experiment import Experiment, Values
from lavagna.studies.lab.work import Work


@pytest.fixture(scope="module")
def work() -> Iterator[Work]:
    """Everything in this process; what one test trains the next one has."""
    with Work(0) as here:
        yield here


def plain(values: Values) -> Values:
    """As a file would have it: JSON, without NaN."""
    return json.loads(json.dumps(values, allow_nan=False))


def reproduced(name: str, values: Values, *, left_out: int = 0) -> None:
    """Every expected figure among the values is met, and so many are not among them."""
    checks = check(plain(values), expected(name))
    missing = [one for one in checks if one.got == "nothing"]
    assert [str(one) for one in checks if not one.met and one not in missing] == []
    assert len(missing) == left_out
    assert len(missing) < len(checks)


def shown(experiment: Experiment, values: Values, folder: Path) -> None:
    """Tables have as many cells in each row as titles, and every figure can be drawn."""
    for table in experiment.tables(plain(values)).values():
        assert table.rows
        assert {len(row) for row in table.rows} == {len(table.columns)}
        assert all(isinstance(cell, str) for row in table.rows for cell in row)
    for name, drawing in experiment.figures.items():
        draw(drawing, plain(values), folder / f"{name}.png")
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


WHOLE: dict[str, Any] = {
    "equals-torch": equals_torch,
    "scale": scale,
    "mask": mask,
    "heads": heads,
    "parameters": parameters,
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole(name: str, work: Work, tmp_path: Path) -> None:
    values = WHOLE[name].measure(work)
    reproduced(name, values)
    shown(WHOLE[name].EXPERIMENT, values, tmp_path)


def test_gradcheck(work: Work, tmp_path: Path) -> None:
    values = gradcheck.measure(work)
    reproduced("gradcheck", values)
    shown(gradcheck.EXPERIMENT, values, tmp_path)
    # Every coordinate that the larger step spoils crosses a kink.
    for norm, fewest in (("pre", 5), ("post", 2)):
        at = values[norm]["1e-04"]
        spoiled = {i for i, error in enumerate(at["errors"]) if error > 1e-5}
        assert len(spoiled) >= fewest
        assert spoiled <= set(at["kinks"])


def test_quadratic_but_for_its_times(work: Work, tmp_path: Path) -> None:
    values = quadratic.measure(work)
    slopes = values.pop("slopes")
    reproduced("quadratic", values, left_out=len(slopes))
    shown(quadratic.EXPERIMENT, {**values, "slopes": slopes}, tmp_path)


def test_cache_but_for_its_times(work: Work, tmp_path: Path) -> None:
    values = cache.measure(work, new=8)
    del values["faster"]  # a ratio of times
    reproduced("cache", values, left_out=1)
    shown(cache.EXPERIMENT, {**values, "faster": 1.0}, tmp_path)


def test_copy_and_sort_of_four_symbols(work: Work, tmp_path: Path) -> None:
    values = copy_sort.measure(work, lengths=(4,), seeds=(0,))
    reproduced("copy-sort", values, left_out=16 + 6)
    shown(copy_sort.EXPERIMENT, values, tmp_path)


def test_ablations_full_and_without_positions(work: Work, tmp_path: Path) -> None:
    values = ablations.measure(work, variants=("full", "without_positions"))
    reproduced("ablations", values, left_out=4 * 3)
    shown(ablations.EXPERIMENT, values, tmp_path)


def test_attention_map(work: Work, tmp_path: Path) -> None:
    values = attention_map.measure(work)
    reproduced("attention-map", values)
    shown(attention_map.EXPERIMENT, values, tmp_path)


def test_not_an_explanation(work: Work, tmp_path: Path) -> None:
    values = not_an_explanation.measure(work)
    reproduced("not-an-explanation", values)
    assert values["maps"]["answer"] == list(attention_map.SYMBOLS)
    shown(not_an_explanation.EXPERIMENT, values, tmp_path)


def test_why_scale_in_a_few_steps(work: Work, tmp_path: Path) -> None:
    values = why_scale.measure(work, sizes=(8, 64, 128), seeds=(0,), steps=25)
    for d_k, largest in (("64", 0.7), ("128", 0.75)):
        first = {way: values["sizes"][d_k][way]["seeds"]["0"]["first_weights"] for way in why_scale.WAYS}
        assert first["undivided"] > largest > 0.4 > first["divided"]
    shown(why_scale.EXPERIMENT, values, tmp_path)


def test_depth_in_a_few_steps(work: Work, tmp_path: Path) -> None:
    values = depth.measure(work, depths=(1, 2, 3), seeds=(0,), steps=25)
    assert [len(at["pre"]) for at in values["gradients"].values()] == [1, 2, 3]
    shown(depth.EXPERIMENT, values, tmp_path)


def test_first_gradients_are_those_of_the_first_step() -> None:
    training = depth.training(2, "post", "without", 3, 1)
    rng = np.random.default_rng(3)
    decoder = training.decoder(rng)
    _, gradients = train_step(decoder, Adam(decoder.params), *batch("copy", rng, 32, 6), 3e-3)
    for layer, norm in enumerate(depth.first_gradients(training)):
        block = [g.ravel() for name, g in gradients.items() if name.startswith(f"{layer}.")]
        assert norm == pytest.approx(np.linalg.norm(np.concatenate(block)), rel=1e-12)


def test_position_leak_of_one_decoder(work: Work, tmp_path: Path) -> None:
    values = position_leak.measure(work, seeds=(0,), sequences=60)
    for beginning in position_leak.BEGINNINGS:
        explained = values[beginning]["explained"]
        assert explained["causal"]["block 2"]["mean"] > 0.3
        for view in ("window, late", "everything"):
            assert explained[view]["block 2"]["mean"] < 0.05
        assert explained["causal"]["embedding"]["mean"] < 0.05
    assert values["unmarked"]["changed"]["block 1"] < 1e-12 < 1e-2 < values["unmarked"]["changed"]["block 2"]
    shown(position_leak.EXPERIMENT, values, tmp_path)


def test_memory_without_distinct_distractors_and_capacity(work: Work) -> None:
    values = memory.measure(work, groups=("rewritten", "repeated", "ranking"))
    reproduced("memory", values, left_out=4 + 16)
    for table in memory.EXPERIMENT.tables(values).values():
        assert {len(row) for row in table.rows} == {len(table.columns)}


def test_copy_and_sort_with_models_of_torch(work: Work, tmp_path: Path) -> None:
    values = copy_sort_torch.measure(work, mixers=("retnet",), steps=25)
    assert list(values["rows"]) == ["attention", "attention without positions", "retnet"]
    for at in values["rows"].values():
        for task in ("copy", "sort"):
            assert at[task]["curve"][0] < 4
            assert 0 <= at[task]["per_sequence"] <= at[task]["per_token"] <= 1
    shown(copy_sort_torch.experiment(["retnet"]), values, tmp_path)


@pytest.mark.parametrize("mixer", [*MIXERS, copy_sort_torch.WITHOUT_POSITIONS])
def test_every_mixer_has_a_model_for_copy_and_sort(mixer: str) -> None:
    model = LanguageModel(copy_sort_torch.config(mixer), seed=0)
    size = sum(parameter.numel() for parameter in model.parameters())
    assert 20_000 < size < 60_000
    if mixer == "attention":  # the decoder from scratch, but for the 21 biases of its head
        assert size == 27_253 - 21
