"""Copy and sort with models of lavagna, every mixer by the protocol of the decoder from scratch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...mixers.registry import MIXERS, mixer_class, option_types
from ...tasks import Task, accuracy, batch, held_out
from .copy_sort import TASKS, smooth
from .drawing import colour
from .experiment import Drawing, Experiment, Table, Values
from .training import BATCH, EVERY, VOCABULARY
from .work import Tick, Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...models import LanguageModelConfig

__all__ = ["WITHOUT_POSITIONS", "experiment", "measure"]

L = 6
WIDTH, HEADS, BLOCKS = 32, 4, 2
STEPS, RATE = 1500, 3e-3
WITHOUT_POSITIONS = "attention without positions"
BESIDE = ("attention", WITHOUT_POSITIONS)


class Piece(NamedTuple):
    """One training: a row of the table, a task, and how long it is trained."""

    row: str
    task: Task
    steps: int


def experiment(mixers: Sequence[str]) -> Experiment:
    """Copy and sort with these mixers, attention beside them."""
    return Experiment(partial(measure, mixers=mixers), tables, {"accuracy": Drawing(WORDS, _draw, height=3.4)})


def measure(work: Work, *, mixers: Sequence[str] = tuple(MIXERS), steps: int = STEPS) -> Values:
    rows = [*BESIDE, *(name for name in mixers if name not in BESIDE)]
    pieces = [Piece(row, task, steps) for row in rows for task in TASKS]
    found = dict(zip(pieces, work.map(one_training, pieces), strict=True))
    return {"rows": {row: {task: found[Piece(row, task, steps)] for task in TASKS} for row in rows}}


def config(row: str) -> LanguageModelConfig:
    """The decoder from scratch with another mixer in the place of attention; learned positions for attention alone."""
    from ...models import LanguageModelConfig

    name = "attention" if row == WITHOUT_POSITIONS else row
    options: dict[str, Any] = {"heads": HEADS} if "heads" in option_types(mixer_class(name)).model_fields else {}
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "width": WIDTH,
        "layers": f"{BLOCKS}*{name}",
        "norm": "layernorm",
        "mlp": "relu",
        "tied": False,
    }
    if name == "attention":
        options |= {"position": "none", "qkv_bias": True, "out_bias": True}
        if row != WITHOUT_POSITIONS:
            values |= {"position": "learned", "max_positions": 2 * L + 1}
    return LanguageModelConfig.parse({**values, "mixers": {name: options} if options else {}})


def one_training(piece: Piece, tick: Tick) -> Values:
    """Train a model; one generator of seed 0 draws every batch, as it does from scratch."""
    import torch

    from ...generation import Sampling, generate
    from ...models import LanguageModel
    from ...training.loss import next_token_loss

    torch.set_num_threads(1)
    begin = time.process_time()
    rng = np.random.default_rng(0)
    model = LanguageModel(config(piece.row), seed=0)
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    losses = np.empty(piece.steps)
    for step in range(piece.steps):
        inputs, targets, weights = map(torch.from_numpy, batch(piece.task, rng, BATCH, L))
        hidden, _ = model.hidden(inputs)
        loss = next_token_loss(model.head, hidden, targets, weights.to(hidden.dtype) / weights.sum())
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses[step] = loss.item()
        if step % EVERY == 0:
            tick(step / piece.steps)
    model.eval()
    prompts, right = held_out(piece.task, L)
    made = generate(model, list(torch.from_numpy(prompts)), max_tokens=L, sampling=Sampling(temperature=0))
    found = accuracy(torch.stack(made.tokens).numpy(), right)
    return {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "loss": float(losses[-1]),
        "per_token": found.per_token,
        "per_sequence": found.per_sequence,
        "curve": smooth(losses),
        "seconds": round(time.process_time() - begin, 1),
    }


def tables(values: Values) -> dict[str, Table]:
    rows = [
        (
            row,
            f"{at['copy']['parameters']:,}",
            *(f"{at[task][name]:.3f}" for task in TASKS for name in ("per_token", "per_sequence")),
            f"{sum(at[task]['seconds'] for task in TASKS):.0f} s",
        )
        for row, at in values["rows"].items()
    ]
    titles = ("mixer", "parameters", *(f"{task}, {of}" for task in TASKS for of in ("token", "sequence")), "both took")
    return {"accuracy": Table(titles, rows)}


def _draw(values: Values, axes: list[Axes]) -> None:
    rows = list(values["rows"])
    for i, task in enumerate(TASKS):
        whole = [values["rows"][row][task]["per_sequence"] for row in rows]
        places = np.arange(len(rows)) + (i - 0.5) * 0.38
        axes[0].bar(places, whole, 0.36, label=task, color=colour(i))
    axes[0].set_xticks(range(len(rows)), [row.replace("_", " ").replace(" without", "\nwithout") for row in rows])
    axes[0].tick_params(axis="x", rotation=60)
    axes[0].grid(axis="x", visible=False)
    axes[0].set(ylabel="whole sequences right", ylim=(0, 1.2))
    axes[0].legend(ncols=2, loc="upper right")


WORDS = "Share of whole sequences that each mixer copies and sorts"
