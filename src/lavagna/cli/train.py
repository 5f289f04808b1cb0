"""``lavagna train``: a model from data, with everything it was asked for kept in the run's folder."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from .common import Column, Data, Device, Threads, TokenizerName, choose_device, use_threads
from .progress import TrainingProgress, progress

if TYPE_CHECKING:
    from ..data import Corpus
    from ..training import Finished, Settings, World

__all__ = ["train"]


def train(
    data: Data = None,
    config: Annotated[
        Path | None,
        typer.Option(help=r"TOML file with the tables \[model], \[training] and \[data].", metavar="FILE"),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Shape of the model: LAYERS-SIZE with SIZE nano (.15 M parameters), tiny (1 M), small (10 M) or base "
            "(100 M), such as gated_deltanet-tiny or '3*gated_deltanet+attention@small'; or mamba-130m, mamba2-130m, "
            "gpt2.",
            metavar="NAME",
        ),
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Saved model (or run) to go on from, with its tokenizer.", metavar="MODEL")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run (default: runs/ and the model's name).", metavar="DIR")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on from the last checkpoint in --out, exactly as if the run had not stopped; its settings are "
            "known and need not be given again.",
        ),
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps (default: 1000).", metavar="N")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens in a row (default: 512).", metavar="N")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows in a batch, for each process (default: 8).", metavar="N")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate after the warm-up (default: 0.001).", metavar="RATE")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the initialisation and the order of the data (default: 0).", metavar="N")
    ] = None,
    tokenizer: TokenizerName = None,
    column: Column = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any other key, as table.key=value: training.schedule=wsd, model.mixers.attention.heads=8. "
            "May be repeated; wins over the other options.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option(
            "--tensorboard/--no-tensorboard",
            help="Write curves into DIR/tensorboard (default: if TensorBoard is installed).",
            show_default=False,
        ),
    ] = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Train a model on your data.

    The run's folder gets run.json (all settings), metrics.jsonl, data (the
    tokens), checkpoints and, at the end, model. Ctrl-C saves before it leaves.
    Several devices: torchrun --nproc-per-node N -m lavagna.cli.app train ...
    """
    from ..training import SETTINGS, Settings, join_world, merge, read_tables, set_value

    if resume and out is None:
        raise ConfigError("--resume needs --out, the folder of the run to go on with")
    use_threads(threads)
    place = choose_device(device)
    known = out / SETTINGS if resume and out is not None and (out / SETTINGS).is_file() else None
    fresh = not (config or preset or init)
    tables = read_tables(config) if config else read_tables(known) if known and fresh else {}
    if tables.get("model") and not fresh and (preset or init):
        raise ConfigError(f"expected one model, got --{'preset' if preset else 'init'} and [model] in {str(config)!r}")
    given: dict[str, dict[str, Any]] = {
        "model": {"preset": preset, "init": init and str(init)},
        "training": {
            "steps": steps,
            "context": context,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "seed": seed,
        },
        "data": {"source": data or None, "column": column, "tokenizer": tokenizer},
    }
    for name, table in given.items():
        if chosen := {key: value for key, value in table.items() if value is not None}:
            tables = merge(tables, {name: chosen})
    for assignment in set_ or []:
        tables = set_value(tables, assignment)
    if resume and known is None and not tables.get("model"):
        raise ConfigError(f"expected a run to go on with in {str(out)!r}, but there is no {SETTINGS} in it")
    settings = Settings.parse(tables)
    run = out or Path("runs", _name(preset, init, config))

    with join_world(place) as world:
        if place.type == "cuda":
            place = _own_gpu(world)
        finished = _run(settings, run, resume, place, world, tensorboard)
        if world.leads:
            _tell(finished, run, settings.training.steps)
    if finished.interrupted is not None:
        raise typer.Exit(128 + finished.interrupted)


def _name(preset: str | None, init: Path | None, config: Path | None) -> str:
    """A folder's name for a run."""
    name = preset or (f"from-{init.resolve().name}" if init else config.stem if config else "model")
    return re.sub(r"[^\w.-]+", "_", name).strip("_")


def _own_gpu(world: World) -> Any:
    import torch

    torch.cuda.set_device(world.local_rank)
    return torch.device("cuda", world.local_rank)


def _run(settings: Settings, run: Path, resume: bool, device: Any, world: World, tensorboard: bool | None) -> Finished:
    """Read the data, build the model, train it."""
    from ..training import SETTINGS, check_free, make_batches
    from ..training import tensorboard as curves
    from ..training import train as train_model

    check_free(run, resume)
    if resume and (run / SETTINGS).is_file():
        settings.refuse_other_data(run / SETTINGS)
    corpus = _corpus(settings, run, resume, world)
    model = settings.build_model(corpus.tokenizer)
    training, validation = corpus.split(settings.training.validation_fraction)
    if not world.leads:
        return train_model(
            model, training, validation, settings.training, run, resume=resume, device=device, world=world
        )
    make_batches(training, settings.training, world)  # refuses data that are too short, before anything is written
    if not (resume and (run / SETTINGS).is_file()):
        settings.save(run / SETTINGS)
    parameters = sum(p.numel() for p in model.parameters())
    documents = "1 document" if len(validation) == 1 else f"{len(validation)} documents"
    typer.echo(
        f"{run}: {parameters:,} parameters, {training.n_bytes:,} bytes to train on, "
        f"{validation.n_bytes:,} held out ({documents})",
        err=True,
    )
    with TrainingProgress(settings.training.steps) as shown, curves(run, tensorboard) as draw:

        def observe(line: Any) -> None:
            shown.observe(line)
            draw(line)

        return train_model(
            model,
            training,
            validation,
            settings.training,
            run,
            resume=resume,
            device=device,
            world=world,
            observe=observe,
            evaluating=shown.evaluating,
        )


def _corpus(settings: Settings, run: Path, resume: bool, world: World) -> Corpus:
    """The run's tokens: made by the process that leads, opened by the others."""
    from ..data import Corpus
    from ..training import DATA, make_tokenizer, open_corpus

    folder = run / DATA
    if world.leads and not (resume and folder.is_dir()):
        if settings.data.trains_tokenizer:
            typer.echo("training the vocabulary ...", err=True)
        tokenizer = settings.init_tokenizer() or make_tokenizer(settings.data)
        with progress("reading data") as show:
            open_corpus(settings.data, tokenizer, folder, show)
    world.wait()
    return Corpus.open(folder)


def _tell(finished: Finished, run: Path, steps: int) -> None:
    """Say how the run ended and what to do next."""
    quoted = shlex.quote(str(run))
    if finished.interrupted is not None:
        name = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[signal.Signals(finished.interrupted)]
        saved = f"saved in {finished.model}" if finished.model else "nothing to save yet"
        typer.echo(f"stopped by {name} after step {finished.step} of {steps}; {saved}")
        typer.echo(f"go on:  lavagna train --resume --out {quoted}")
        return
    typer.echo(f"{finished.bits_per_byte:.4f} bits per byte on held-out data after {finished.step} steps")
    typer.echo(f"model:  {finished.model}")
    typer.echo(f"next:   lavagna generate {quoted} 'a prompt'")
    typer.echo(f"        lavagna evaluate {quoted}")
