"""The training loop: what a step computes, what a run writes, where it stops."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from lavagna.data import ByteTokenizer, Corpus, StreamBatches, load_tokenizer, prepare
from lavagna.errors import ConfigError, DataError, NonFiniteError
from lavagna.evaluation import score
from lavagna.models import LanguageModel, ModelState
from lavagna.training import TrainingConfig, learning_rate, make_optimizer, read_metrics, train
from lavagna.training.loss import BatchLoss
from tests.support.budget import close
from tests.support.models import LAYERS, make_model
from tests.training.support import TINY, run, untimed

ALL = pytest.mark.parametrize("layers", LAYERS)
#: three steps and an evaluation, for runs that are compared
QUICK: dict[str, Any] = {"steps": 3, "evaluate_every": 0, "save_every": 0}


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder) if "loss" in line]


@ALL
def test_it_learns(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    finished = run(corpus, tmp_path / "run", layers=layers, steps=40, evaluate_every=0, save_every=0)
    first, *_, last = losses(tmp_path / "run")
    assert first > math.log(257) - 1
    assert last < 0.75 * first
    assert (finished.step, finished.interrupted, finished.model) == (40, None, tmp_path / "run" / "model")
    assert finished.bits_per_byte < 6


@ALL
def test_a_run_leaves_a_model_that_is_ready(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    finished = run(corpus, tmp_path / "run", layers=layers)
    assert finished.model is not None
    model, tokenizer = LanguageModel.load(finished.model), load_tokenizer(finished.model)
    assert tokenizer.fingerprint == corpus.tokenizer.fingerprint
    _, validation = corpus.split(TINY["validation_fraction"])
    scores = score(model, validation, context=24, max_tokens=100, batch_size=2)
    assert (
        scores.bits_per_byte == finished.bits_per_byte == read_metrics(tmp_path / "run")[-1]["validation_bits_per_byte"]
    )
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["checkpoints", "metrics.jsonl", "model"]
    assert sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


def test_metrics_say_what_happened_at_each_step(corpus: Corpus, tmp_path: Path) -> None:
    seen: list[Mapping[str, Any]] = []
    run(corpus, tmp_path / "run", observe=seen.append)
    lines = read_metrics(tmp_path / "run")
    assert lines == seen
    assert [line["step"] for line in lines] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert [line["step"] for line in lines if "validation_bits_per_byte" in line] == [3, 6]
    first = lines[0]
    assert first["tokens"] == 2 * 24
    assert first["learning_rate"] == learning_rate(0, TrainingConfig.parse(TINY))
    assert first["tokens_per_second"] == first["tokens"] / first["seconds"]
    assert first["gradient_norm"] > 0


@ALL
def test_accumulated_micro_batches_are_one_big_batch(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    run(corpus, tmp_path / "big", layers=layers, batch_size=4, dtype="float64", **QUICK)
    run(corpus, tmp_path / "small", layers=layers, batch_size=2, accumulate=2, dtype="float64", **QUICK)
    assert losses(tmp_path / "small") == pytest.approx(losses(tmp_path / "big"), rel=1e-9)
    small, big = (
        [line["gradient_norm"] for line in read_metrics(tmp_path / name) if "loss" in line] for name in ("small", "big")
    )
    assert small == pytest.approx(big, rel=1e-9)


@ALL
def test_recomputed_blocks_train_the_same(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    for carry in (False, True):
        keys = {"layers": layers, "carry_state": carry, "dtype": "float64", **QUICK}
        run(corpus, tmp_path / f"kept-{carry}", **keys)
        run(corpus, tmp_path / f"recomputed-{carry}", checkpointing=True, **keys)
        assert losses(tmp_path / f"recomputed-{carry}") == pytest.approx(losses(tmp_path / f"kept-{carry}"), rel=1e-9)


@pytest.fixture
def long_corpus(tmp_path: Path) -> Corpus:
    """Two documents whose tokens can be told from what came many segments before, and no sooner."""
    (tmp_path / "long").mkdir()
    for name in "ab":
        (tmp_path / "long" / name).write_bytes(name.encode() + b"x" * 200)
    return prepare(tmp_path / "long", ByteTokenizer(), tmp_path / "long-corpus")


@ALL
def test_a_carried_state_reaches_over_the_cut(long_corpus: Corpus, layers: str, tmp_path: Path) -> None:
    """Step s + 1 starts from step s's state, detached, and not from nothing."""
    constant = {"schedule": "wsd", "warmup": 0, "decay": 0}
    config = TrainingConfig.parse(
        {**TINY, **constant, "steps": 2, "carry_state": True, "batch_size": 1, "context": 16, "dtype": "float64"}
    )
    training, validation = long_corpus.split(0.5)
    train(make_model(layers), training, validation, config, tmp_path / "run")
    first, second = losses(tmp_path / "run")

    model = make_model(layers, dtype=torch.float64)
    batches = StreamBatches(training, 16, 1)
    loss, state = BatchLoss(model)(batches.at(0), None)
    loss = loss / 16
    assert first == pytest.approx(loss.item(), rel=1e-12)
    # The same step by hand: one AdamW step, then the next segment from the detached state.
    optimizer = make_optimizer(model, config)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
    optimizer.step()
    model.zero_grad()
    carried, _ = BatchLoss(model)(batches.at(1), state.detach())
    forgotten, _ = BatchLoss(model)(batches.at(1), None)
    assert second == pytest.approx(carried.item() / 16, rel=1e-9)
    assert abs(second - forgotten.item() / 16) > 1e-6
    carried.backward()  # nothing of the first segment's graph is needed, which is freed


@ALL
def test_a_document_cut_in_segments_gives_the_losses_of_the_whole(long_corpus: Corpus, layers: str) -> None:
    """With weights that stand still the segments' losses are those of one long pass."""
    model = make_model(layers, dtype=torch.float64)
    batches = StreamBatches(long_corpus, 16, 1)
    state: ModelState | None = None
    whole, parts = [], []
    for step in range(6):
        loss, state = BatchLoss(model)(batches.at(step), state)
        state = state.detach()
        parts.append(loss.detach())
        whole.append(batches.at(step))
    text, targets = torch.cat([b.tokens for b in whole], 1), torch.cat([b.targets for b in whole], 1)
    logits = model(text).logits[0]
    expected = torch.nn.functional.cross_entropy(logits, targets[0], reduction="none").detach()
    close("segments", torch.stack(parts), expected.unflatten(0, (6, 16)).sum(1))


@ALL
def test_half_precision_products_train(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    for carry in (False, True):
        run(corpus, tmp_path / f"{carry}", layers=layers, autocast="bfloat16", carry_state=carry, **QUICK)
        run(corpus, tmp_path / f"{carry}-full", layers=layers, carry_state=carry, **QUICK)
        half, full = losses(tmp_path / f"{carry}"), losses(tmp_path / f"{carry}-full")
        assert half != full
        assert half == pytest.approx(full, rel=0.05)
    assert {p.dtype for p in LanguageModel.load(tmp_path / "True" / "model").parameters()} == {torch.float32}


@ALL
def test_half_precision_parameters_train(corpus: Corpus, tmp_path: Path, layers: str) -> None:
    run(corpus, tmp_path / "run", layers=layers, dtype="bfloat16", **QUICK)
    assert {p.dtype for p in LanguageModel.load(tmp_path / "run" / "model").parameters()} == {torch.bfloat16}
    assert all(map(math.isfinite, losses(tmp_path / "run")))


def test_gradients_are_clipped_to_the_norm_asked_for(corpus: Corpus, tmp_path: Path) -> None:
    """At a tiny norm AdamW's eps, set large, makes steps proportional to the clipped gradient."""
    keys = {"steps": 1, "eps": 1e6, "weight_decay": 0.0, "dtype": "float64"}
    moved = []
    for clip in (1e-3, 2e-3):
        run(corpus, tmp_path / f"{clip}", clip=clip, **keys)
        model = LanguageModel.load(tmp_path / f"{clip}" / "model")
        before = make_model(dtype=torch.float64)
        moved.append(
            math.sqrt(
                sum(
                    (a - b).detach().square().sum().item()
                    for a, b in zip(model.parameters(), before.parameters(), strict=True)
                )
            )
        )
    assert moved[1] / moved[0] == pytest.approx(2, rel=1e-6)
    run(corpus, tmp_path / "free", clip=0, **keys)
    assert read_metrics(tmp_path / "free")[0]["gradient_norm"] == read_metrics(tmp_path / "0.001")[0]["gradient_norm"]


def test_a_loss_that_is_not_finite_stops_the_run(corpus: Corpus, tmp_path: Path) -> None:
    """The message has the step, the rate, the first layer at fault, the checkpoint; nothing is saved after it."""
    config = TrainingConfig.parse({**TINY, "save_every": 2})
    training, validation = corpus.split(0.2)
    model = make_model("2*gated_deltanet")

    def poison(line: Mapping[str, Any]) -> None:
        if line["step"] == 4:
            with torch.no_grad():
                model.stack()[1].mixer.get_parameter("qkv_proj.weight").fill_(1e38)

    with pytest.raises(NonFiniteError) as caught:
        train(model, training, validation, config, tmp_path / "run", observe=poison)
    message = str(caught.value)
    assert "at step 5" in message
    assert "learning rate 0.00" in message
    assert "first not finite: blocks.1.mixer.qkv_proj (output)" in message
    assert "the last good checkpoint is" in message
    assert str(tmp_path / "run" / "checkpoints" / "step-00000004") in message
    assert [line["step"] for line in read_metrics(tmp_path / "run") if "loss" in line] == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "model").exists()


def test_a_parameter_that_is_not_finite_is_named(corpus: Corpus, tmp_path: Path) -> None:
    training, validation = corpus.split(0.2)
    model = make_model()
    with torch.no_grad():
        model.stack()[0].mixer.get_parameter("A_log").fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"blocks.0.mixer.A_log \(parameter\); no checkpoint was saved"):
        train(model, training, validation, TrainingConfig.parse(TINY), tmp_path / "run")


def test_a_gradient_that_is_not_finite_is_named(corpus: Corpus, tmp_path: Path) -> None:
    training, validation = corpus.split(0.2)
    model = make_model()
    model.stack()[0].mixer.get_parameter("out_proj.weight").register_hook(lambda gradient: gradient * math.inf)
    with pytest.raises(NonFiniteError, match=r"gradient norm (inf|nan) .*blocks.0.mixer.out_proj.weight \(gradient\)"):
        train(model, training, validation, TrainingConfig.parse(TINY), tmp_path / "run")


def test_a_second_run_in_the_same_folder_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    run(corpus, tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"already holds a run: resume it \(--resume\), or choose another folder"):
        run(corpus, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_a_corpus_shorter_than_one_context_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least one context of 100000 tokens"):
        run(corpus, tmp_path / "run", context=100000)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_metrics_of_a_crash_are_read_up_to_the_last_whole_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2, "lo')
    assert read_metrics(tmp_path) == untimed(tmp_path) == [{"step": 1}]
    assert read_metrics(tmp_path / "nothing") == []
