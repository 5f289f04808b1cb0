"""What several commands share: devices, threads, saved models, and numbers as people read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from ..errors import InputError, unknown_name

if TYPE_CHECKING:
    import torch

    from ..data import Tokenizer
    from ..models import LanguageModel

__all__ = [
    "Column",
    "Data",
    "Device",
    "Opened",
    "Threads",
    "TokenizerName",
    "at_least",
    "choose_device",
    "duration",
    "open_model",
    "use_threads",
]

DEVICES = ("cpu", "cuda", "mps")

Data = Annotated[
    list[str] | None,
    typer.Argument(
        help="Files, folders or glob patterns; .jsonl and .parquet give a document per line or row "
        "(default: the sources of Python's standard library).",
        show_default=False,
    ),
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        help="bytes (default); bpe:SIZE, trained on the data; or the path of a tokenizer.json.", metavar="NAME"
    ),
]
Column = Annotated[
    str | None,
    typer.Option(help="Key or column of the text in .jsonl and .parquet files (default: text).", metavar="NAME"),
]
Device = Annotated[str, typer.Option(help="Where to compute: cpu, cuda or mps.", metavar="NAME")]
Threads = Annotated[
    int | None, typer.Option(help="CPU threads (default: as many as torch takes, one per core).", metavar="N")
]


class Opened(NamedTuple):
    """A saved model: the folder it was found in, the model, its tokenizer."""

    folder: Path
    model: LanguageModel
    tokenizer: Tokenizer


def at_least(least: int, **options: int | None) -> None:
    """Refuse an option below `least`; None stands for a default.

    Raises:
        InputError: naming the option and its value.
    """
    for name, value in options.items():
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")


def choose_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        InputError: none of that name, or torch cannot use it here.
    """
    import torch

    if name not in DEVICES:
        raise InputError(unknown_name("device", name, DEVICES))
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available[name]:
        raise InputError(f"expected a device that torch can use here, got {name!r}")
    return torch.device(name)


def use_threads(count: int | None) -> None:
    """Let torch use so many threads; None leaves its choice.

    Raises:
        InputError: fewer than one.
    """
    import torch

    at_least(1, threads=count)
    if count is not None:
        torch.set_num_threads(count)


def open_model(path: Path, device: torch.device) -> Opened:
    """Load the model of a folder, or of a run, ready to be used.

    Raises:
        ConfigError, DataError: there is none, or it is damaged.
    """
    from ..data import load_tokenizer
    from ..models import LanguageModel
    from ..training import find_model

    folder = find_model(path)
    return Opened(folder, LanguageModel.load(folder, device=device).eval(), load_tokenizer(folder))


def duration(seconds: float) -> str:
    """Seconds as people read them: 7 s, 3 min 20 s, 2 h 05 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
