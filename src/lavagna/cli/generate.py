"""``lavagna generate``: continue a prompt, shown as it is made."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import DataError, InputError
from .common import Device, Opened, Threads, at_least, choose_device, open_model, use_threads
from .progress import progress

if TYPE_CHECKING:
    from ..generation import Piece, Reading

__all__ = ["generate"]

SHOWN = 400  # characters of the prompt that are repeated at a terminal, its last ones


def generate(
    model: Annotated[Path, typer.Argument(help="Folder of a model or of a run.", show_default=False)],
    prompt: Annotated[
        str | None,
        typer.Argument(help="Text to continue (default: none, a document from its start).", show_default=False),
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help="Read this file before the prompt; - is standard input.", metavar="FILE"),
    ] = None,
    samples: Annotated[int, typer.Option("-n", "--samples", help="Continuations.", metavar="N")] = 1,
    max_tokens: Annotated[int, typer.Option(help="New tokens of each continuation; 0 only reads.", metavar="N")] = 256,
    temperature: Annotated[
        float, typer.Option(help="Logits are divided by it; 0 takes the likeliest token.", metavar="T")
    ] = 1.0,
    greedy: Annotated[bool, typer.Option("--greedy", help="The same as --temperature 0.")] = False,
    top_k: Annotated[
        int | None, typer.Option(help="Choose among the K likeliest tokens (default: all).", metavar="K")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Choose among the fewest tokens whose probabilities reach P (default: all).", metavar="P"),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            help="Choose among tokens of at least P times the likeliest one's probability (default: all).", metavar="P"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Sample s draws with seed + s.", metavar="N")] = 0,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End before this text; may be repeated.", metavar="TEXT"),
    ] = None,
    save_state: Annotated[
        Path | None,
        typer.Option(help="Keep what the model remembers after the prompt, before it generates.", metavar="FILE"),
    ] = None,
    load_state: Annotated[
        Path | None, typer.Option(help="Go on from a state that --save-state kept.", metavar="FILE")
    ] = None,
    prefill_chunk: Annotated[
        int, typer.Option(help="Prompt tokens read at once; memory grows with it.", metavar="N")
    ] = 2048,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Continue a prompt with a trained model.

    Standard output gets the generated text alone; a terminal shows the prompt
    before it. Several continuations come one after the other, each ended by a
    newline.
    """
    from ..generation import Sampling, StopHolder, read_text, stream_text

    at_least(1, samples=samples, prefill_chunk=prefill_chunk)
    at_least(0, max_tokens=max_tokens)
    StopHolder(stop or ())  # refuses what cannot be, before anything is read
    if greedy and temperature not in (0.0, 1.0):
        raise InputError(f"expected --greedy or --temperature, got both (temperature {temperature})")
    sampling = Sampling.parse(
        {
            "temperature": 0.0 if greedy else temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "seed": seed,
        }
    )
    use_threads(threads)
    opened = open_model(model, choose_device(device))
    text = _file(prompt_file) + (prompt or "").encode("utf-8", "surrogateescape")
    before = _load(load_state, opened)
    with progress("reading the prompt") as show:
        reading = read_text(
            opened.model, opened.tokenizer, [text], before, prefill_chunk=prefill_chunk, on_progress=show
        )
    if save_state is not None:
        reading.save(save_state, opened.model)
        typer.echo(f"state saved in {save_state}", err=True)
    if max_tokens == 0:
        return
    pieces = stream_text(
        opened.model,
        opened.tokenizer,
        reading,
        max_tokens=max_tokens,
        samples=samples,
        sampling=sampling,
        stops=stop or (),
    )
    _show(pieces, samples, text.decode("utf-8", "replace"))


def _file(path: Path | None) -> bytes:
    if path is None:
        return b""
    try:
        return sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from None


def _load(path: Path | None, opened: Opened) -> Reading | None:
    from ..generation import Reading

    if path is None:
        return None
    reading = Reading.load(path, opened.model)
    if len(reading.logits) != 1:
        raise InputError(f"expected the state of one text, got one of {len(reading.logits)} in {str(path)!r}")
    return reading


def _show(pieces: Iterator[Piece], samples: int, prompt: str) -> None:
    """Print samples one after the other: the first as it is made, the others meanwhile wait for their turn."""
    terminal = sys.stdout.isatty()
    waiting: dict[int, str] = {}
    ended: set[int] = set()
    turn = 0

    def begin() -> None:
        if samples > 1:
            typer.secho(f"── sample {turn + 1} of {samples}", err=True, dim=True)
        if terminal:
            shown = prompt if len(prompt) <= SHOWN else f"…{prompt[-SHOWN:]}"
            typer.secho(_visible(shown), nl=False, dim=True)

    def put(text: str) -> None:
        typer.echo(_visible(text) if terminal else text, nl=False)

    begin()
    for piece in pieces:
        if piece.done:
            ended.add(piece.row)
        if piece.row != turn:
            waiting[piece.row] = waiting.get(piece.row, "") + piece.text
            continue
        put(piece.text)
        while turn in ended:
            typer.echo()
            turn += 1
            if turn < samples:
                begin()
                put(waiting.pop(turn, ""))


def _visible(text: str) -> str:
    """Control characters as symbols, so that no text can command the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda m: chr(0x2400 + ord(m[0])) if ord(m[0]) < 32 else "�", text)
