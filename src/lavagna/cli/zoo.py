"""``lavagna zoo``: how each mixer's memory survives a token, in words and drawn."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import InputError
from .common import open_model

if TYPE_CHECKING:
    from ..data import Tokenizer
    from ..studies.zoo import View

__all__ = ["TEXT", "zoo"]

TEXT = "lavagna"
FIGURE = "zoo.png"
WIDE = 128  # columns that the table needs


def zoo(
    out: Annotated[
        Path | None, typer.Option(help="Folder in which to draw zoo.png (default: only print).", metavar="DIR")
    ] = None,
    text: Annotated[str, typer.Option(help="What is read; its first 8 tokens are drawn.", metavar="TEXT")] = TEXT,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a model or of a run whose mixers read it (default: a freshly seeded model of each mixer).",
            metavar="FOLDER",
        ),
    ] = None,
) -> None:
    """Print and draw how each mixer's memory survives a token.

    The matrix that carries the memory before a token to the memory after it is read off the mixer's own operator,
    with the keys and gates that the text has in a freshly seeded model, or in one that you trained.
    """
    import torch

    from ..data import ByteTokenizer
    from ..studies.zoo import MOST, WIDTH, draw, view

    if model is None:
        opened = None
        tokenizer: Tokenizer = ByteTokenizer()
        source = f"freshly seeded models of width {WIDTH}, untrained"
    else:
        _, opened, tokenizer = open_model(model, torch.device("cpu"))
        source = f"trained weights of {model}, the lowest layer of each mixer"
    ids = tokenizer.encode(text)[:MOST]
    if not len(ids):
        raise InputError("expected a --text of at least one character, got an empty one")
    views = view(torch.from_numpy(ids.astype("int64")), opened)
    tokens = [_readable(tokenizer.decode([int(i)])) for i in ids]
    _print(views, tokens, source)
    if out is not None:
        try:
            draw(views, tokens, source, out / FIGURE)
        except OSError as error:
            raise InputError(f"expected a folder to draw in, got {out}: {error.strerror or error}") from error
        typer.echo(f"figure: {out / FIGURE}")


def _readable(token: bytes) -> str:
    """A token's bytes as people read them: a blank is seen, and what is no text is a number."""
    text = token.decode("utf-8", "replace").replace(" ", "␣")
    return text if text.isprintable() and "�" not in text else token.hex(" ")


def _print(views: Sequence[View], tokens: Sequence[str], source: str) -> None:
    from rich.columns import Columns
    from rich.console import Console
    from rich.table import Table

    from ..studies.zoo import lines

    terminal = shutil.get_terminal_size().columns
    console = Console(highlight=False, markup=False, width=max(terminal, WIDE))
    table = Table("mixer", "S_t =", "survives through", box=None, padding=(0, 2, 0, 0))
    for line in lines():
        table.add_row(line.mixer, line.recurrence, line.survives)
    console.print(table)
    console.print(
        f"\nWhat carries S_(t−1) to S_t at {tokens[-1]!r}, the last token of {' '.join(tokens)!r}.\n"
        f"Head (or channel) 1; {source}.\n"
        "Darker is nearer to 1, - below 0, blank 0; at most the first 8 rows and columns. Beneath, the eigenvalues\n"
        "(of complex ones, as S4D has, the real part is drawn and the sizes told). Attention carries nothing on:\n"
        "the keys that it keeps, the largest 1.\n",
        soft_wrap=True,  # a path may be long
    )
    console.print(Columns([_panel(view) for view in views], padding=(1, 3)), width=terminal)


def _panel(view: View) -> Any:
    from rich.text import Text

    from ..studies.zoo import shade, told

    matrix = view.drawn[-1]
    return Text("\n".join([view.mixer, *shade(matrix), told(view, -1)]), no_wrap=True)
