"""The command ``lavagna``: a table of commands, and what becomes of their errors.

A command is a function in a file of its own; typer reads its arguments. The file is imported when its
command is called, so ``lavagna --help`` loads no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from .. import __version__
from ..errors import LavagnaError

__all__ = ["COMMANDS", "main"]

#: command -> ("module:function", what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "compare": (
        "compare:compare",
        "Train candidate architectures on your data and report which is best for it.",
    ),
    "plan": ("plan:plan", "Tell parameters, FLOPs and memory of a model before it is trained."),
    "train": ("train:train", "Train a model on your data."),
    "generate": ("generate:generate", "Continue a prompt with a trained model."),
    "evaluate": ("evaluate:evaluate", "Measure a model on held-out data, in bits per byte."),
    "audit": ("audit:audit", "Look for the silent bugs of any sequence model."),
    "lab": ("lab:lab", "Reproduce experiments on attention and on what replaces it, from scratch."),
    "zoo": ("zoo:zoo", "Print and draw how each mixer's memory survives a token."),
    "info": ("info:info", "Tell what is installed here and which implementation each operator can use."),
}

ERROR_STATUS = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process.

    Exit status: 0 when all went well, 2 for every error that Lavagna raises on purpose, for files that cannot be
    used and for wrong arguments, 130 when interrupted from the keyboard.

    Args:
        arguments: what follows the program's name; None reads them from the process.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        _build(called=arguments[0] if arguments else "")(arguments, prog_name="lavagna")
    except LavagnaError as error:
        typer.echo(f"lavagna: {error}", err=True)
        sys.exit(ERROR_STATUS)
    except OSError as error:  # a full disk, a folder that is a file, no permission
        if error.filename is None:
            raise
        typer.echo(f"lavagna: cannot use {str(error.filename)!r}: {error.strerror}", err=True)
        sys.exit(ERROR_STATUS)


def _build(called: str) -> typer.Typer:
    """The application: the called command as it is, and of the others the name and what they do."""
    app = typer.Typer(
        help="Sequence models with a cache that grows or a memory of fixed size: train, run, compare.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    for name, (target, summary) in COMMANDS.items():
        if name == called:
            function = _load(target)
            app.command(name, help=_unwrapped(function.__doc__ or summary))(function)
        else:
            app.command(name, help=summary)(_not_called)
    return app


def _unwrapped(text: str) -> str:
    """Paragraphs without the line breaks of the source: the terminal has its own width."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _load(target: str) -> Callable[..., Any]:
    module, function = target.split(":")
    return getattr(import_module(f"{__package__}.{module}"), function)


def _not_called() -> None:
    raise AssertionError("a command's place in the list was called instead of the command")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lavagna {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Options of the program itself; each acts through its callback."""


if __name__ == "__main__":  # as torchrun starts it: torchrun -m lavagna.cli.app train ...
    main()
