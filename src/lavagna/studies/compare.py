"""``lavagna compare``: candidates of one size, trained on the same tokens, measured on the same text.

A comparison is a folder::

    settings.json        what was asked; another call with other settings is refused
    work/                until it is over: the tokens, the result of each stage, runs with their checkpoints
    models/NAME          the trained models, of the first seed
    results.json         all numbers
    report.html          the same to be read
"""

from __future__ import annotations

import math
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..data import Corpus
from ..data.sources import files_fingerprint, find_files
from ..errors import ConfigError
from ..evaluation import Interval, Scores, bits_per_byte
from ..report import write_report
from ..training import DataConfig, read_tables
from .candidates import parse_candidates
from .config import CompareConfig
from .differences import beyond, difference, positions, quality, seed_spread
from .machine import processor
from .measures import (
    MEASURED,
    SCORED,
    Quality,
    count_flops,
    measure_baselines,
    measure_speeds,
    score_run,
    write_samples,
)
from .runs import Interrupted, choose_rate, train_run
from .speed import spread
from .stages import Watcher, write_json
from .study import MODELS, WORK, Study
from .verdict import verdict

__all__ = ["REPORT", "RESULTS", "Interrupted", "compare", "compared_data", "forget"]

SETTINGS, RESULTS, REPORT = "settings.json", "results.json", "report.html"
TEXT = "text"  # key of the settings: fingerprint of the files that were read
FORMAT = 2
CURVE_POINTS = 80


def compare(
    config: CompareConfig,
    out: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> dict[str, Any]:
    """Train, measure and compare candidates; go on with, or show, what stands in `out`.

    Args:
        config: what is compared and how.
        out: folder of the comparison.
        device: "cpu", "cuda", "mps".
        watcher: told how far it is.

    Returns:
        What results.json holds.

    Raises:
        ConfigError: `out` holds something else, a comparison with other settings, of a text that has changed since,
            or of another version; a candidate cannot have the wanted size, or diverges at every learning rate.
        DataError: the data are missing, or too short to be divided.
        NonFiniteError: a run diverged.
        Interrupted: by Ctrl-C or SIGTERM during training; the same call goes on.
    """
    folder = Path(out)
    files = find_files(config.data.sources, pattern=config.data.pattern)
    text = files_fingerprint(files, config.data.column)
    _check(folder, config, text)
    if not (folder / RESULTS).is_file():
        watcher = watcher or Watcher()
        watcher.begin(_work(config))
        study = Study(config, folder, torch.device(device), watcher)
        # Only now: a mistyped name of a file or a mixer shall not occupy the folder.
        write_json(folder / SETTINGS, {**config.model_dump(mode="json"), TEXT: text})
        write_json(folder / RESULTS, _results(study))
    shutil.rmtree(folder / WORK, ignore_errors=True)
    results = read_tables(folder / RESULTS)
    if results.get("format") != FORMAT:
        raise ConfigError(
            f"expected results of format {FORMAT} in {str(folder / RESULTS)!r}, got {results.get('format')} of another "
            "version of Lavagna; choose another folder, or overwrite it"
        )
    write_report(results, folder / REPORT)
    return results


def forget(out: str | os.PathLike[str]) -> None:
    """Remove a comparison from its folder, and nothing else that is there."""
    folder = Path(out)
    if not (folder / SETTINGS).is_file():
        return
    for name in (WORK, MODELS):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (RESULTS, REPORT, SETTINGS):
        (folder / name).unlink(missing_ok=True)


def compared_data(model: Path) -> DataConfig | None:
    """The data of the comparison to which the folder of a model belongs; None where it belongs to none.

    Raises:
        ConfigError: the comparison's settings cannot be read.
    """
    path = model.absolute().parent.parent / SETTINGS
    if model.absolute().parent.name != MODELS or not path.is_file():
        return None
    return DataConfig.parse(read_tables(path).get("data", {}))


def _check(folder: Path, config: CompareConfig, text: str) -> None:
    """See that the folder is free, or holds a comparison with these settings, of this text."""
    path = folder / SETTINGS
    if path.is_file():
        before, wanted = read_tables(path), config.model_dump(mode="json")
        text_before = before.pop(TEXT, None)
        differing = [
            f"{key} was {before.get(key)!r} and is {wanted.get(key)!r}"
            for key in sorted({*before, *wanted})
            if before.get(key) != wanted.get(key)
        ]
        if differing:
            raise ConfigError(
                f"{str(folder)!r} holds a comparison with other settings: {'; '.join(differing)}; "
                "choose another folder, or overwrite it"
            )
        if text_before != text:
            raise ConfigError(
                f"the text has changed since the comparison in {str(folder)!r} was begun; choose another folder, or "
                "let --overwrite make the comparison anew"
            )
        return
    if folder.exists() and not (folder.is_dir() and {entry.name for entry in folder.iterdir()} <= {WORK}):
        raise ConfigError(f"expected a comparison, an empty folder or nothing at {str(folder)!r}, got something else")
    shutil.rmtree(folder / WORK, ignore_errors=True)  # of a call that did not get as far as its settings


def _work(config: CompareConfig) -> float:
    """All that is to be done, in trained tokens."""
    candidates = parse_candidates(config.candidates)
    step = config.context * config.batch_size
    run = step * config.steps() + 2 * SCORED * config.evaluate_tokens
    rates = len(config.learning_rates)
    search = step * config.steps(config.search) * rates * len({candidate.pattern for candidate in candidates})
    return len(candidates) * (config.seeds * run + MEASURED) + (search if rates > 1 else 0)


def _results(study: Study) -> dict[str, Any]:
    """All stages, and what came out."""
    everyone = range(len(study.candidates))
    rates = [choose_rate(study, i) for i in everyone]
    curves: list[list[dict[str, Any]]] = [[] for _ in everyone]
    scores: list[list[Quality]] = [[] for _ in everyone]
    # Seed by seed: after the first round all candidates have been seen once.
    for seed in range(study.config.seeds):
        for i in everyone:
            curves[i].append(train_run(study, i, seed, rates[i]["chosen"]))
            scores[i].append(score_run(study, i, seed))
    bigram, gzip = measure_baselines(study)
    training, generation = measure_speeds(study)
    flops = count_flops(study)
    samples = write_samples(study)

    trained = [[run.trained for run in runs] for runs in scores]
    longer = [[run.beyond for run in runs] for runs in scores]
    groups: dict[tuple[int, float], list[Quality]] = {}
    for i in everyone:
        groups.setdefault((study.first_equal(i), rates[i]["chosen"]), []).extend(scores[i])
    seeds = seed_spread([[run.trained for run in group] for group in groups.values()])
    longer_groups = [[run.beyond for run in group] for group in groups.values()]
    candidates = [
        {
            "name": study.candidates[i].name,
            "folder": f"{MODELS}/{study.candidates[i].folder}",
            "parameters": study.sizes[i].parameters,
            "config": study.sizes[i].config.model_dump(mode="json"),
            "learning_rate": rates[i],
            "bits_per_byte": _interval(*quality(trained[i], seeds)),
            "runs": [run.bits_per_byte for run in trained[i]],
            "by_position": [
                {"from": low, "to": high, **_interval(*interval)}
                for low, high, interval in positions(longer[i], longer_groups)
            ],
            "beyond": _change(beyond(longer[i], longer_groups, study.config.context)),
            "curve": _mean_curve(curves[i]),
            "flops": flops[i],
            "memory": [{"context": at["context"], "bytes": at["state_bytes"]} for at in generation[i]],
            "speed": {
                "training": spread(training[i]["auto"]),
                "native": _times_portable(training[i]),
                "generation": [{"context": at["context"], **spread(at["tokens_per_second"])} for at in generation[i]],
            },
            "against_bigrams": _interval(*difference(trained[i], [bigram], seeds, b_has_seed=False)),
            "sample": samples[i],
        }
        for i in everyone
    ]
    differences = []
    for i in everyone:
        for j in range(i):
            found = difference(trained[i], trained[j], seeds)
            names = {"a": study.candidates[i].name, "b": study.candidates[j].name}
            differences.append({**names, **_interval(*found), "sure": found.sure})
    results: dict[str, Any] = {
        "format": FORMAT,
        "versions": {"lavagna": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {"processor": processor(), "threads": torch.get_num_threads(), "device": str(study.device)},
        "settings": study.config.model_dump(mode="json"),
        "data": _facts(study, trained[0][0]),
        "candidates": candidates,
        "differences": differences,
        "seed_spread": seeds._asdict(),
        "baselines": {"bigram": _interval(*bits_per_byte([bigram])), "gzip": gzip},
    }
    return {**results, "verdict": verdict(results)}


def _facts(study: Study, scored: Scores) -> dict[str, Any]:
    """What the data are."""
    config, (training, tune, held_out) = study.config, study.data
    read = config.steps() * config.context * config.batch_size
    return {
        "source": list(config.data.source) or ["the sources of Python's standard library"],
        "tokenizer": config.data.tokenizer,
        "training": _size(training),
        "tune": _size(tune),
        "held_out": _size(held_out),
        "tokens_per_run": read,
        "passes": read / (training.n_tokens + len(training)),
        "scored_bytes": int(scored.bytes.sum()),
        "scored_documents": len(np.unique(scored.documents)),
        "parts": len(scored.documents) if study.part else None,
    }


def _size(corpus: Corpus) -> dict[str, int]:
    return {"documents": len(corpus), "tokens": corpus.n_tokens, "bytes": corpus.n_bytes}


def _interval(value: float, low: float, high: float) -> dict[str, float | None]:
    """An interval as JSON knows it: an end of which nothing is known is null."""
    ends = (end if math.isfinite(end) else None for end in (low, high))
    return dict(zip(("value", "low", "high"), (value, *ends), strict=True))


def _change(found: tuple[tuple[int, int], tuple[int, int], Interval] | None) -> dict[str, Any] | None:
    """A change from one span of positions to another."""
    if found is None:
        return None
    spans = {
        name: dict(zip(("from", "to"), span, strict=True))
        for name, span in zip(("near", "far"), found[:2], strict=True)
    }
    return {**spans, **_interval(*found[2])}


def _times_portable(speeds: Mapping[str, Sequence[float]]) -> dict[str, float] | None:
    """How many times as fast training was as on the portable path, in each round; None where that is the only one."""
    if "torch" not in speeds:
        return None
    return spread([chosen / portable for chosen, portable in zip(speeds["auto"], speeds["torch"], strict=True)])


def _mean_curve(runs: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Loss curves of runs averaged, and over spans of steps."""
    bits = np.mean([run["bits"] for run in runs], axis=0)
    tokens = np.cumsum(runs[0]["tokens"])
    spans = np.array_split(np.arange(len(bits)), min(CURVE_POINTS, len(bits)))
    return {"tokens": [int(tokens[s].mean()) for s in spans], "bits": [float(bits[s].mean()) for s in spans]}
