"""``lavagna evaluate``: bits per byte of a model on documents, by position, with intervals."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .common import Device, Opened, Threads, at_least, choose_device, open_model, use_threads
from .progress import progress

if TYPE_CHECKING:
    from ..data import Corpus
    from ..evaluation import Interval
    from ..training import DataConfig

__all__ = ["Split", "evaluate"]


class Split(StrEnum):
    """Which part of the data is scored."""

    VALIDATION = "validation"
    ALL = "all"


def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a model or of a run.", show_default=False)],
    data: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files, folders or glob patterns (default: the data of its run or comparison; without either, the "
            "sources of Python's standard library).",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Split | None,
        typer.Option(
            help="The part held out by a training run on these data, or all (default: validation, but all of DATA "
            "that the model was not trained on).",
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Tokens after which the model forgets; 0 reads each document through (default: as in training, or 0).",
            metavar="N",
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Score a sample of about this many tokens (default: all).", metavar="N"),
    ] = None,
    column: Annotated[
        str, typer.Option(help="Key or column of the text in .jsonl and .parquet files.", metavar="NAME")
    ] = "text",
    batch_size: Annotated[int, typer.Option(help="Documents read side by side.", metavar="N")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Measure a model on data it has not seen, in bits per byte.

    Documents are streamed: memory does not grow with their length (but
    attention's cache does). Intervals are 95 % bootstrap intervals over
    documents, or over parts of them where there are fewer than twenty.
    """
    import numpy as np

    from ..evaluation import bits_per_byte, by_position, score, windows_per_part
    from ..studies.compare import compared_data
    from ..training import DataConfig, TrainingConfig, find_run, trained_on, trained_with

    at_least(0, context=context)
    at_least(1, max_tokens=max_tokens, batch_size=batch_size)
    use_threads(threads)
    opened = open_model(model, choose_device(device))
    training = trained_with(opened.folder)
    if context is None:
        context = 0 if training is None or training.carry_state else training.context
    given = DataConfig(source=tuple(data), column=column) if data else None
    compared = None if data else compared_data(opened.folder)
    source = given or compared or DataConfig(column=column)
    with _corpus(opened, source, None if data else find_run(model)) as corpus:
        if compared and corpus.fingerprint != trained_on(opened.folder):
            raise ConfigError("the text of the model's comparison has changed since: expected DATA to measure it on")
        if split is None:
            # A model's own data, given by name, hold what it was trained on.
            split = Split.ALL if data and corpus.fingerprint != trained_on(opened.folder) else Split.VALIDATION
        if split is Split.VALIDATION:
            corpus = corpus.split((training or TrainingConfig()).validation_fraction)[1]
        with progress("evaluating") as show:
            scores = score(
                opened.model,
                corpus,
                context=context or None,
                max_tokens=max_tokens,
                part=windows_per_part(corpus, context) if context else None,
                batch_size=batch_size,
                on_progress=show,
            )
    result = {
        "model": str(opened.folder),
        "split": split.value,
        "documents": len(np.unique(scores.documents)),
        "parts": len(scores.documents),
        "bytes": int(scores.bytes.sum()),
        "context": context,
        "bits_per_byte": _plain(bits_per_byte([scores])),
        "by_position": [
            {"first": first, "end": end, **_plain(interval)} for first, end, interval in by_position([scores])
        ],
    }
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        _print(result)


@contextmanager
def _corpus(opened: Opened, data: DataConfig, run: Path | None) -> Iterator[Corpus]:
    """The documents in the model's tokens: the run's own, or made for this evaluation and removed after it."""
    from ..data import Corpus
    from ..training import DATA, open_corpus

    if run is not None:
        yield Corpus.open(run / DATA)
        return
    with tempfile.TemporaryDirectory(prefix="lavagna-") as folder:
        with progress("reading data") as show:
            corpus = open_corpus(data, opened.tokenizer, Path(folder, "data"), show)
        yield corpus


def _plain(interval: Interval) -> dict[str, float | None]:
    """An interval for JSON, which has no infinity: an end that is not known is null."""
    low, high = (end if math.isfinite(end) else None for end in (interval.low, interval.high))
    return {"value": interval.value, "low": low, "high": high}


def _print(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    total = result["bits_per_byte"]
    how = f"read in windows of {result['context']} tokens" if result["context"] else "read through"
    documents = "1 document" if result["documents"] == 1 else f"{result['documents']} documents"
    if result["parts"] > result["documents"]:
        documents += f" in {result['parts']} parts"
    typer.echo(f"{total['value']:.4f} bits per byte (95 % interval: {_ends(total, 4)})")
    which = "held out" if result["split"] == Split.VALIDATION else "all of the data"
    typer.echo(f"{documents}, {result['bytes']:,} bytes ({which}), {how}\n")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("position", "bits per byte", "95 % interval"):
        table.add_column(title, justify="right")
    for row in result["by_position"]:
        table.add_row(f"{row['first']}–{row['end'] - 1}", f"{row['value']:.3f}", _ends(row, 3))
    Console(highlight=False, soft_wrap=True).print(table)


def _ends(interval: dict[str, float | None], digits: int) -> str:
    from ..evaluation import LEAST_DOCUMENTS

    low, high = interval["low"], interval["high"]
    if low is None or high is None:
        return f"unknown, of fewer than {LEAST_DOCUMENTS} documents"
    return f"{low:.{digits}f} to {high:.{digits}f}"
