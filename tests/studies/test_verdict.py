"""Every sentence of the verdict is right, in the usual cases and at the edges."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lavagna.studies.verdict import KINDS, verdict

from .results import candidate, results

ATTENTION = candidate("attention", 2.9, training=20_000, generation=300, state=(100_000, 1_600_000), beyond=3.8)
MAMBA = candidate("mamba", 2.4, training=8_000, generation=600, state=(50_000, 50_000), beyond=2.4)
DELTA = candidate("gated_deltanet", 2.6, training=10_000, generation=590, state=(40_000, 40_000), beyond=2.3)


def said(found: dict[str, Any], *, kind: str | None = None, topic: str | None = None) -> str:
    """All that the verdict says of a kind or a topic."""
    return " ".join(
        statement["text"]
        for statement in verdict(found)
        if kind in (None, statement["kind"]) and topic in (None, statement["topic"])
    )


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (results, topic, what is said of it)
    "a sure winner": (
        results(ATTENTION, MAMBA, DELTA),
        "quality",
        "mamba predicts held-out text best: it needs 2.400 bits per byte, 0.200 (7.7 %) fewer than gated_deltanet, the "
        "next. The difference is sure, as far as one seed can tell: its 95 % interval is 0.180 to 0.220.",
    ),
    "a sure winner, seeds repeated": (
        results(DELTA, MAMBA, seeds=2, spread=(0.01, 2)),
        "quality",
        "mamba predicts held-out text best: it needs 2.400 bits per byte, 0.200 (7.7 %) fewer than gated_deltanet, the "
        "next. The difference is sure: its 95 % interval is 0.180 to 0.220.",
    ),
    "all tied": (
        results(candidate("attention", 2.41), candidate("mamba", 2.4)),
        "quality",
        "Cannot tell which candidate predicts held-out text best: in bits per byte, mamba (2.400) and attention "
        "(2.410) differ by no more than chance may do.",
    ),
    "two tied in front": (
        results(ATTENTION, MAMBA, candidate("gla", 2.41)),
        "quality",
        "Cannot tell which of mamba and gla predicts held-out text best: in bits per byte, mamba (2.400) and gla "
        "(2.410) differ by no more than chance may do. Surely not best: attention (2.900).",
    ),
    "one candidate": (
        results(MAMBA),
        "quality",
        "mamba needs 2.400 bits per byte of held-out text (95 % interval 2.390 to 2.410). It is the only candidate, so "
        "there is nothing to compare it with but what needs no training.",
    ),
    "one candidate, one document": (
        results(candidate("mamba", 2.4, known=False)),
        "quality",
        "mamba needs 2.400 bits per byte of held-out text. It is the only candidate, so there is nothing to compare it "
        "with but what needs no training.",
    ),
    "all beat the table": (
        results(MAMBA, DELTA),
        "bigrams",
        "All candidates beat a table of which token follows which (3.500 bits per byte).",
    ),
    "one beats the table": (
        results(MAMBA),
        "bigrams",
        "It beats a table of which token follows which (3.500 bits per byte).",
    ),
    "one does not beat the table": (
        results(MAMBA, candidate("attention", 3.6)),
        "bigrams",
        "attention does not even beat a table of which token follows which (3.500 bits per byte): with this budget it "
        "has learnt next to nothing, and its place in this comparison means nothing. Train on more tokens, or with "
        "fewer parameters.",
    ),
    "one worse than the table, one not to be told from it": (
        results(candidate("mamba", 3.49), candidate("attention", 3.6), candidate("gla", 3.7)),
        "bigrams",
        "attention and gla do not even beat a table of which token follows which (3.500 bits per byte): with this "
        "budget they have learnt next to nothing, and their place in this comparison means nothing. Train on more "
        "tokens, or with fewer parameters. mamba cannot be told from a table of which token follows which (3.500 bits "
        "per byte): with this budget it has learnt very little, and its place in this comparison means little. Train "
        "on more tokens, or with fewer parameters.",
    ),
    "none reaches gzip": (
        results(MAMBA, DELTA),
        "gzip",
        "gzip -9 packs all of the held-out text into 1.900 bits per byte; no candidate gets there with this budget.",
    ),
    "some reach gzip": (
        results(MAMBA, DELTA, gzip=2.5),
        "gzip",
        "gzip -9 packs all of the held-out text into 2.500 bits per byte; only mamba needs fewer.",
    ),
    "all reach gzip": (
        results(MAMBA, DELTA, gzip=3.0),
        "gzip",
        "gzip -9 packs all of the held-out text into 3.000 bits per byte; all candidates need fewer.",
    ),
    "past the trained length": (
        results(ATTENTION, MAMBA, DELTA),
        "beyond",
        "Past the 256 tokens of a training window, at positions 512 to 1,023 compared with 128 to 255 of "
        "the same documents: attention (+0.900) needs more bits per byte; mamba (+0.000) shows no sure change; "
        "gated_deltanet (-0.300) needs fewer bits per byte.",
    ),
    "nothing past the trained length": (results(candidate("mamba", 2.4)), "beyond", ""),
    "speeds": (
        results(ATTENTION, MAMBA, DELTA),
        "speed",
        "In training, attention is fastest: 20,000 tokens/s, 2.5 times as fast as mamba, the slowest. In generating "
        "after reading 4,096 tokens, mamba and gated_deltanet are about equally fast: 600 tokens/s, 2.0 times as fast "
        "as attention, the slowest.",
    ),
    "equal speeds": (
        results(candidate("mamba", 2.4), candidate("gla", 2.5)),
        "speed",
        "In training, mamba and gla are about equally fast: 10,000 tokens/s. In generating after reading 4,096 tokens, "
        "mamba and gla are about equally fast: 500 tokens/s.",
    ),
    "the speed of one": (
        results(MAMBA),
        "speed",
        "It trains at 8,000 tokens/s and, after reading 4,096 tokens, generates 600 tokens/s.",
    ),
    "states": (
        results(ATTENTION, MAMBA, DELTA),
        "memory",
        "From 256 to 4,096 tokens read, the state of attention grows from 100 kB to 1.6 MB, that of mamba stays at 50 "
        "kB and that of gated_deltanet stays at 40 kB.",
    ),
    "a steady state alone": (
        results(MAMBA),
        "memory",
        "From 256 to 4,096 tokens read, the state of mamba stays at 50 kB.",
    ),
    "first in all": (
        results(candidate("mamba", 2.4, training=30_000), candidate("gla", 2.9)),
        "together",
        "mamba is first, or cannot be told from the first, in all of these: bits per byte, speed of training, speed of "
        "generation after 4,096 tokens and size of the state there.",
    ),
    "first in different things": (
        results(ATTENTION, MAMBA, DELTA),
        "together",
        "No candidate is first in everything. First, or not to be told from it, in bits per byte: mamba; speed of "
        "training: attention; speed of generation after 4,096 tokens: mamba and gated_deltanet; size of the state "
        "there: gated_deltanet.",
    ),
    "nothing to be first among": (results(MAMBA), "together", ""),
    "documents": (
        results(MAMBA, DELTA),
        "documents",
        "Quality was measured on 100,000 bytes of 30 documents that no model was trained on and no choice was made by.",
    ),
    "a tokenizer made for the text": (
        results(MAMBA, DELTA, tokenizer="bpe:300"),
        "documents",
        "Quality was measured on 100,000 bytes of 30 documents that no model was trained on and no choice was made by. "
        "The tokenizer, however, was made from all of the text.",
    ),
    "one document in parts": (
        results(MAMBA, DELTA, documents=1, parts=40),
        "documents",
        "Quality was measured on 100,000 bytes of 1 document that no model was trained on and no choice was made by. "
        "For so few documents the intervals draw 40 parts of them again: they say how sure a result is on more of this "
        "document, not on others.",
    ),
    "a short budget": (
        results(MAMBA),
        "budget",
        "Each model has about 150 k parameters and read 700 k tokens, 4.7 for each parameter. That is short: about 20 "
        "are usual. What would be best after longer training, or at another size, is not shown.",
    ),
    "a full budget, the text read twice": (
        results(MAMBA, tokens=3_000_000, passes=2.25),
        "budget",
        "Each model has about 150 k parameters and read 3 M tokens, 20.0 for each parameter. What would be best at "
        "another size is not shown. The training text was read 2.2 times over; with more text the order may be "
        "another.",
    ),
    "a rate that was given": (
        results(MAMBA, DELTA),
        "learning rate",
        "All candidates had the learning rate 0.01, which was not searched for here; another may suit one better. All "
        "other settings are the same for all, and tuned for none.",
    ),
    "rates that were searched": (
        results(
            candidate("mamba", 2.4, edge="highest", diverged=(0.03,)),
            candidate("gla", 2.5, edge="lowest"),
            rates=(0.001, 0.01, 0.03),
        ),
        "learning rate",
        "Learning rates were chosen among 0.001, 0.01 and 0.03 after 10 % of the tokens, on text apart from training "
        "and held-out text. For gla the lowest one was best, so a lower one may be better still. For mamba the highest "
        "one was best, so a higher one may be better still. Training diverged for mamba at 0.03. All other settings "
        "are the same for all, and tuned for none.",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_said(case: str) -> None:
    found, topic, expected = CASES[case]
    topics = {"speed": "finding"}
    assert said(found, topic=topic, kind=topics.get(topic)) == expected


def test_a_candidate_worse_than_the_table_is_the_first_thing_said() -> None:
    found = verdict(results(MAMBA, candidate("attention", 3.6)))
    assert found[0]["kind"] == "warning"
    assert "attention" in found[0]["text"]


def test_one_document_gives_no_false_assurance() -> None:
    alone = candidate("mamba", 2.4, known=False, beyond=3.0)
    assert "cannot be told from a table" in said(results(alone), kind="warning")
    assert said(results(alone), topic="beyond") == ""


def test_one_seed_is_said_to_be_one_and_its_assumption_named() -> None:
    text = said(results(MAMBA, DELTA), topic="seeds")
    assert text == (
        "One run, with one seed, was made of each candidate. How much another seed would change was not measured: two "
        "runs that differ in nothing else were assumed to be within 5 % of each other, so no smaller difference counts "
        "as sure. Three seeds (--seeds 3) would measure it."
    )


def test_several_seeds() -> None:
    text = said(results(ATTENTION, MAMBA, DELTA, seeds=3, spread=(0.0123, 6)), topic="seeds")
    assert text == (
        "3 runs were made of each candidate. Runs that differ in their seed alone have a standard deviation of 0.012 "
        "bits per byte, estimated from 6 repetitions. Intervals of differences cover seeds and documents together. "
        "Each of the 3 differences has a 95 % interval of its own: about one in twenty misses the truth."
    )


def test_equal_candidates_are_named_as_such() -> None:
    twins = results(candidate("attention", 2.9), candidate("attention (2)", 2.903), spread=(0.002, 1))
    text = said(twins, topic="seeds")
    assert "attention and attention (2) are the same architecture with different seeds: the 0.003 bits" in text
    assert "estimated from 1 repetition; with so few repetitions the intervals are wide." in text
    assert said(twins, topic="quality").startswith("Cannot tell which candidate")


def test_candidates_not_surely_behind_the_best_may_yet_be_surely_behind_another() -> None:
    found = results(candidate("a", 2.40), candidate("b", 2.42), candidate("c", 2.44))
    for difference in found["differences"]:
        pair = {difference["a"], difference["b"]}
        difference["sure"] = pair == {"b", "c"}
    assert said(found, topic="quality") == (
        "Cannot tell which of a and b predicts held-out text best: in bits per byte, a (2.400) and b (2.420) differ by "
        "no more than chance may do. Surely not best: c (2.440)."
    )


@pytest.mark.parametrize("case", CASES)
def test_every_statement_is_a_sentence_of_a_known_kind(case: str) -> None:
    found = verdict(CASES[case][0])
    order = [KINDS.index(statement["kind"]) for statement in found]
    assert order == sorted(order)
    for statement in found:
        assert re.fullmatch(r"\S.*\.", statement["text"]), statement
        assert not re.search(r"  |None|nan|inf\b|\.\.|\{|\}|[+-]?\d+\.\d{6,}", statement["text"]), statement
