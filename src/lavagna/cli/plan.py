"""``lavagna plan``: parameters, FLOPs and memory of a model before it is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError, InputError, unknown_name
from .common import at_least

if TYPE_CHECKING:
    from ..cost import Plan
    from ..models import LanguageModelConfig

__all__ = ["CONTEXTS", "DTYPES", "as_json", "plan"]

#: what is planned where no context is given, as far as the model's positions go
CONTEXTS = (4096, 131072, 1000000)

#: name -> torch's name of it
DTYPES = {
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "float32": "float32",
    "float64": "float64",
}

WIDE = 110  # columns, where there is no terminal that has as many

NOTES = (
    "FLOPs: matrix products alone, a multiply-add being two, attention over all pairs of tokens; what is done element "
    "by element, as in Mamba's scan, is not among them. Logits that training makes in pieces are made twice, and so "
    "counted.",
    "Activations: of the portable implementation, attention fused. All together: weights, gradients, AdamW's moments "
    "and activations at their most.",
    "Sequential steps: the longest chain of tensor operations through one layer that reads the context at once.",
    "Longest path: layers, or changes of the state, between the two tokens that are furthest apart.",
)


def plan(
    config: Annotated[
        str,
        typer.Argument(
            help=r"TOML file with a \[model] table; folder of a model or of a run; or a preset such as "
            "gated_deltanet-tiny, '3*gated_deltanet+attention@base' or gpt2.",
            show_default=False,
        ),
    ],
    context: Annotated[
        str | None,
        typer.Option(help="Comma-separated numbers of tokens (default: 4096,131072,1000000).", metavar="LIST"),
    ] = None,
    batch: Annotated[int, typer.Option(help="Rows that are trained, or generated, together.", metavar="N")] = 1,
    dtype: Annotated[
        str, typer.Option(help="Of parameters and activations: fp32, bf16, fp16 or fp64.", metavar="NAME")
    ] = "fp32",
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object with exact numbers.")] = False,
) -> None:
    """Tell parameters, FLOPs and memory of a model before it is trained.

    The model is built and run without memory for its numbers, so what is told is its own. FLOPs are those of matrix
    products, a multiply-add being two; attention counts every pair of tokens, as torch's own counter does.
    """
    at_least(1, batch=batch)
    if dtype not in DTYPES:
        raise InputError(unknown_name("dtype", dtype, DTYPES))
    model = read_config(config)

    import torch

    from .. import cost

    contexts = _contexts(context, model.max_positions)
    planned = cost.plan(model, contexts, batch_size=batch, dtype=getattr(torch, DTYPES[dtype]))
    if json_:
        typer.echo(json.dumps(as_json(planned), indent=2, ensure_ascii=False))
    else:
        _print(config, planned)


def read_config(name: str) -> LanguageModelConfig:
    """The configuration that a name stands for: a file, the folder of a model or run, or a preset.

    Raises:
        ConfigError: it stands for none.
    """
    from ..models import LanguageModelConfig
    from ..models.presets import preset
    from ..training import Settings, read_tables

    path = Path(name)
    if path.is_dir():
        return _saved(path)
    if not path.is_file():
        if path.suffix or path.name != name:
            raise ConfigError(f"expected a configuration file, a model's folder or a preset, but {name!r} is not there")
        return LanguageModelConfig.parse({"vocab_size": _vocabulary("bytes"), **preset(name)})
    settings = Settings.parse(read_tables(path))
    if "init" in settings.model:
        return _saved(Path(settings.model["init"]))
    if "vocab_size" in settings.model:
        return LanguageModelConfig.parse(settings.model)
    return LanguageModelConfig.parse({"vocab_size": _vocabulary(settings.data.tokenizer), **settings.model})


def _saved(folder: Path) -> LanguageModelConfig:
    from ..models import LanguageModelConfig
    from ..training import find_model

    path = find_model(folder) / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    kind = values.pop("model", None)
    if kind != "LanguageModel":
        raise ConfigError(f"{str(path)!r} is of a {kind}, expected a LanguageModel")
    return LanguageModelConfig.parse(values)


def _vocabulary(tokenizer: str) -> int:
    """Tokens of a tokenizer's name in [data]; one that is yet to be trained has as many as were asked for."""
    from ..training import DataConfig, make_tokenizer

    kind, _, size = tokenizer.partition(":")
    if kind == "bpe" and size.isdecimal():
        return int(size)
    return make_tokenizer(DataConfig(tokenizer=tokenizer)).vocab_size


def _contexts(text: str | None, limit: int | None) -> list[int]:
    """The contexts of an option's text, in rising order."""
    if text is None:
        return [context for context in CONTEXTS if limit is None or context <= limit] or [limit or CONTEXTS[0]]
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise InputError(f"--context must be numbers of tokens between commas, got {text!r}")
    return sorted({int(part) for part in parts})


def as_json(planned: Plan) -> dict[str, Any]:
    """A plan as plain values: bytes and FLOPs are whole numbers, of a batch; FLOPs per token are fractions of them."""
    rows = planned.batch_size
    return {
        "dtype": str(planned.dtype).removeprefix("torch."),
        "batch_size": rows,
        "parameters": {"total": sum(planned.parameters.values()), **planned.parameters},
        "weights_bytes": planned.weights,
        "gradients_bytes": planned.gradients,
        "optimizer_bytes": planned.optimizer,
        "layers": [
            {
                "mixer": layer.mixer,
                "mlp": layer.mlp,
                "blocks": layer.blocks,
                "parameters": layer.parameters,
                "parameters_together": layer.blocks * layer.parameters,
                "explanation": layer.why,
                "formulas": list(layer.formulas),
                "contexts": [
                    {"context": context, "sequential_steps": at.steps, "longest_path": at.path}
                    for context, at in layer.at.items()
                ],
            }
            for layer in planned.layers
        ],
        "contexts": [
            {
                "context": context,
                "training_flops": _flops(at.training, rows * context),
                "training_flops_added_by_checkpointing": at.checkpointed,
                "forward_flops": _flops(at.forward, rows * context),
                "generation_flops": None if at.generation is None else _flops(at.generation, rows),
                "state_bytes": at.state,
                "cache_bytes": at.cache,
                "activation_bytes": at.activations,
                "peak_activation_bytes": at.peak,
                "peak_activation_bytes_with_checkpointing": at.checkpointed_peak,
                "training_bytes": planned.training_bytes(context),
                "training_bytes_with_checkpointing": planned.training_bytes(context, checkpointing=True),
            }
            for context, at in planned.at.items()
        ],
    }


def _flops(parts: Mapping[str, int], tokens: int) -> dict[str, Any]:
    total = sum(parts.values())
    return {"total": total, "per_token": total / tokens, **parts}


def _print(name: str, planned: Plan) -> None:
    import shutil

    from rich.console import Console

    width = shutil.get_terminal_size((WIDE, 24)).columns
    console = Console(highlight=False, markup=False, width=max(width, WIDE))
    total = sum(planned.parameters.values())
    dtype = str(planned.dtype).removeprefix("torch.")
    console.print(f"{name}: {total:,} parameters in {dtype}, batches of {planned.batch_size}\n")
    for part in (_parameters(planned, total), _costs(planned), _layers(planned)):
        console.print(part)
        console.print()
    for layer in planned.layers:
        for line in (layer.why, *layer.formulas):
            console.print(f"{layer.mixer}: {line}", soft_wrap=True)
    for note in NOTES:
        console.print(note, soft_wrap=True)


def _table(*columns: str) -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    table.add_column(columns[0], no_wrap=True)
    for column in columns[1:]:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _parameters(planned: Plan, total: int) -> Any:
    table = _table("", "parameters", "share", "bytes")
    itemsize = planned.dtype.itemsize
    blocks = {layer.mixer: f"{layer.blocks} × {layer.mixer}" for layer in planned.layers}
    if not planned.parameters["head"]:
        blocks["embedding"] = "embedding, head too"
    for part, number in planned.parameters.items():
        if number:
            share = f"{100 * number / total:.1f} %"
            table.add_row(blocks.get(part, part), f"{number:,}", share, readable_bytes(number * itemsize))
    table.add_row("together: weights", f"{total:,}", "100.0 %", readable_bytes(planned.weights))
    table.add_row("gradients", "", "", readable_bytes(planned.gradients))
    table.add_row("AdamW's moments", "", "", readable_bytes(planned.optimizer))
    return table


def _costs(planned: Plan) -> Any:
    table = _table("context", *(f"{context:,}" for context in planned.at))
    rows, contexts = planned.batch_size, list(planned.at)

    def flops(title: str, passes: Sequence[Mapping[str, int] | None], tokens: Sequence[int]) -> None:
        """A line for the sum and one for each part."""
        if any(parts is None for parts in passes):
            table.add_row(title, *("-" for _ in passes))
            return
        known = [parts for parts in passes if parts is not None]
        table.add_row(title, *(readable_flops(sum(p.values()) / n) for p, n in zip(known, tokens, strict=True)))
        for part in known[0]:
            table.add_row(f"  {part}", *(readable_flops(p[part] / n) for p, n in zip(known, tokens, strict=True)))

    def size(title: str, values: Sequence[int]) -> None:
        table.add_row(title, *map(readable_bytes, values))

    at = list(planned.at.values())
    flops("FLOPs a token, training", [a.training for a in at], [rows * context for context in contexts])
    added = [readable_flops(a.checkpointed / (rows * context)) for context, a in planned.at.items()]
    table.add_row("  more with checkpointing", *added)
    flops("FLOPs a token, generation", [a.generation for a in at], [rows for _ in contexts])
    size("state", [a.state for a in at])
    size("  of it grown with the context", [a.cache for a in at])
    table.add_row("  times the weights", *(f"{a.state / planned.weights:.3g}" for a in at))
    size("activations held for backward", [a.activations for a in at])
    size("  at most, temporaries too", [a.peak for a in at])
    size("  at most, with checkpointing", [a.checkpointed_peak for a in at])
    size("training, all together", [planned.training_bytes(context) for context in contexts])
    size("  with checkpointing", [planned.training_bytes(context, checkpointing=True) for context in contexts])
    return table


def _layers(planned: Plan) -> Any:
    table = _table("one layer over the context", *(f"{context:,}" for context in planned.at))
    for layer in planned.layers:
        table.add_row(f"{layer.mixer}: sequential steps", *(f"{at.steps:,}" for at in layer.at.values()))
        paths = ("none" if at.path is None else f"{at.path:,}" for at in layer.at.values())
        table.add_row(f"{layer.mixer}: longest path", *paths)
    return table


def readable_bytes(number: float) -> str:
    """1,536 as 1.5 KiB."""
    return _scaled(number, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def readable_flops(number: float) -> str:
    """1,500,000 as 1.5 MFLOP."""
    return _scaled(number, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(number: float, step: int, units: Sequence[str]) -> str:
    power = 0
    while number >= step and power + 1 < len(units):
        number, power = number / step, power + 1
    digits = 0 if number == int(number) else 1 if number >= 10 else 2
    return f"{number:,.{digits}f} {units[power]}"
