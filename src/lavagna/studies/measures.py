"""What is measured of trained models: quality on held-out text, speed, memory, a sample; and of what is untrained."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import native
from ..cost import plan
from ..data import Corpus, PackedBatches
from ..evaluation import Scores, score
from ..generation import Sampling, read_text, stream_text
from .baselines import BigramTable, gzip_bits_per_byte
from .runs import refuse_interrupted
from .speed import generation_speeds, training_speeds
from .stages import Tick
from .study import Study

__all__ = [
    "MEASURED",
    "SCORED",
    "Baselines",
    "Quality",
    "count_flops",
    "measure_baselines",
    "measure_speeds",
    "score_run",
    "write_samples",
]

SAMPLE_TOKENS, PROMPT_BYTES, TEMPERATURE = 200, 48, 0.7

#: work beside training, in trained tokens: scoring a token, measuring the speeds of one candidate
SCORED, MEASURED = 0.4, 60_000


class Quality(NamedTuple):
    """Scores in windows as long as in training, and in longer ones."""

    trained: Scores
    beyond: Scores


class Baselines(NamedTuple):
    """What needs no training."""

    bigram: Scores
    gzip: float


def score_run(study: Study, i: int, seed: int) -> Quality:
    """Score held-out text by the model of a run."""
    config = study.config
    windows = (config.context, config.beyond * config.context)

    def measure(tick: Tick) -> dict[str, Any]:
        model = study.model(i, seed)
        found = [
            score(
                model,
                study.data.held_out,
                context=context,
                max_tokens=config.evaluate_tokens,
                part=study.part and max(study.part * config.context // context, 1),
                batch_size=config.batch_size,
                on_progress=partial(half, tick, place),
            )
            for place, context in enumerate(windows)
        ]
        return {name: _plain(scores) for name, scores in Quality(*found)._asdict().items()}

    def half(tick: Tick, place: int, done: int, total: int) -> None:
        tick((place + done / total) / 2, "")

    def outcome(found: Mapping[str, Any]) -> str:
        return f"{_scores(found['trained']).bits_per_byte:.3f} bits per byte"

    work = 2 * SCORED * config.evaluate_tokens
    found = study.stages.once(study.title(i, "scoring", seed), work, measure, outcome)
    return Quality(**{name: _scores(values) for name, values in found.items()})


def measure_baselines(study: Study) -> Baselines:
    """Score the same text by a table of the training tokens, and pack all held-out text with gzip."""
    config, (training, _, held_out) = study.config, study.data

    def measure(tick: Tick) -> dict[str, Any]:
        batches = PackedBatches(training, config.context, config.batch_size)
        # Another time through the same text adds nothing to a table.
        steps = min(config.steps(), batches.steps_per_epoch)
        table = BigramTable(map(batches.at, range(steps)), training.tokenizer.vocab_size)
        chosen = {"context": config.context, "max_tokens": config.evaluate_tokens, "part": study.part}
        return {
            "bigram": _plain(table.score(held_out, **chosen)),
            "gzip": gzip_bits_per_byte(held_out),
        }

    def outcome(found: Mapping[str, Any]) -> str:
        return f"{_scores(found['bigram']).bits_per_byte:.3f} and {found['gzip']:.3f} bits per byte"

    found = study.stages.once("bigrams and gzip", 0, measure, outcome)
    return Baselines(_scores(found["bigram"]), found["gzip"])


def measure_speeds(study: Study) -> tuple[list[dict[str, list[float]]], list[list[dict[str, Any]]]]:
    """By candidate: what :func:`training_speeds` and :func:`generation_speeds` give.

    Where native kernels run, training is measured on the portable path too.
    """
    config, names = study.config, [candidate.folder for candidate in study.candidates]

    def models() -> dict[str, Any]:
        return {name: study.model(i) for i, name in enumerate(names)}

    def training(tick: Tick) -> dict[str, Any]:
        run = config.run_config(steps=1, learning_rate=min(config.learning_rates), seed=0)
        return training_speeds(
            models(),
            study.data.training,
            study.data.tune,
            run,
            rounds=config.rounds,
            scratch=study.work,
            impls=("auto", "torch") if native.available() and study.device.type == "cpu" else ("auto",),
            device=study.device,
            finished=refuse_interrupted,
            tick=lambda share: tick(share, ""),
        )

    def generation(tick: Tick) -> dict[str, Any]:
        text = _text(study.data.held_out, config.read_lengths[-1])
        return generation_speeds(
            models(), text, config.read_lengths, rounds=config.rounds, tick=lambda share: tick(share, "")
        )

    def outcome(found: Mapping[str, Any]) -> str:
        return f"{config.rounds} rounds that alternate between the candidates"

    work = MEASURED * len(names) / 2
    trained = study.stages.once("measuring training", work, training, outcome)
    generated = study.stages.once("measuring generation", work, generation, outcome)
    return [trained[name] for name in names], [generated[name] for name in names]


def count_flops(study: Study) -> list[dict[str, int | None]]:
    """FLOPs of matrix products a token: of training, and of generation behind the longest reading."""
    context, longest = study.config.context, study.config.read_lengths[-1]

    def count(tick: Tick) -> list[dict[str, int | None]]:
        found: list[dict[str, int | None]] = []
        for i, sized in enumerate(study.sizes):
            at = plan(sized.config, [context, longest]).at
            generation = at[longest].generation
            found.append(
                {
                    "training": sum(at[context].training.values()) // context,
                    "generation": None if generation is None else sum(generation.values()),
                }
            )
            tick((i + 1) / len(study.sizes), "")
        return found

    return study.stages.once("counting FLOPs", 0, count, lambda found: "matrix products alone")


def write_samples(study: Study) -> list[dict[str, str]]:
    """How each model goes on from the same beginning of a held-out document."""
    held_out = study.data.held_out

    def write(tick: Tick) -> list[dict[str, str]]:
        tokenizer = held_out.tokenizer
        ids = held_out.document(int(held_out.lengths.argmax()))[:PROMPT_BYTES]
        prompt = tokenizer.decode(ids)[:PROMPT_BYTES].decode("utf-8", "ignore")
        found = []
        for i in range(len(study.candidates)):
            model = study.model(i)
            pieces = stream_text(
                model,
                tokenizer,
                read_text(model, tokenizer, [prompt]),
                max_tokens=SAMPLE_TOKENS,
                sampling=Sampling(temperature=TEMPERATURE),
            )
            found.append({"prompt": prompt, "text": "".join(piece.text for piece in pieces)})
        return found

    return study.stages.once("writing samples", 0, write, lambda found: f"{len(found)} written")


def _text(corpus: Corpus, length: int) -> torch.Tensor:
    """`length` tokens of a corpus's documents, each between ends, from the beginning again where they run out."""
    end = np.array([corpus.tokenizer.end_of_document])
    pieces, size = [end], 1
    while size < length:
        for ids in corpus.documents():
            pieces += [ids[: length - size].astype(np.int64), end]
            size += len(pieces[-2]) + 1
            if size >= length:
                break
    return torch.from_numpy(np.concatenate(pieces)[:length])


def _plain(scores: Scores) -> dict[str, Any]:
    """Scores as plain lists."""
    return {field: value.tolist() for field, value in scores._asdict().items()}


def _scores(fields: Mapping[str, Any]) -> Scores:
    """Scores from plain lists."""
    floats = {"bits", "position_bits"}
    return Scores(**{name: np.array(v, np.float64 if name in floats else np.int64) for name, v in fields.items()})
