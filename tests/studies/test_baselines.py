"""The table of token pairs and gzip, against numbers computed by hand or by other programs."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from lavagna.data import ByteTokenizer, Corpus, PackedBatches, prepare
from lavagna.data.packing import Batch
from lavagna.evaluation import score
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.studies import baselines
from lavagna.studies.baselines import BigramTable, gzip_bits_per_byte


def batch(*pairs: tuple[int, int]) -> Batch:
    before, after = torch.tensor(pairs, dtype=torch.int64).T
    return Batch(before[None], after[None], torch.ones(1, len(pairs)))


def corpus(folder: Path, *texts: bytes) -> Corpus:
    (folder / "text").mkdir()
    for i, text in enumerate(texts):
        (folder / "text" / f"{i}.txt").write_bytes(text)
    return prepare(folder / "text", ByteTokenizer(), folder / "corpus")


def test_probabilities_by_hand() -> None:
    # Of 3 tokens: 0 is followed by 1 twice and by 2 once; 1 by 0 once; 2 by nothing.
    table = BigramTable([batch((0, 1), (0, 1)), batch((0, 2), (1, 0))], 3)
    p0, p1, p2 = 2 / 7, 3 / 7, 2 / 7  # add-one: counts 1, 2, 1 of 4
    expected = {
        (0, 0): (0 + 2 * p0) / 5,
        (0, 1): (2 + 2 * p1) / 5,
        (0, 2): (1 + 2 * p2) / 5,
        (1, 0): (1 + 1 * p0) / 2,
        (1, 1): (0 + 1 * p1) / 2,
        (2, 0): p0,
        (2, 1): p1,
    }
    before, after = np.array(list(expected)).T
    np.testing.assert_allclose(table.probability(before, after), list(expected.values()), rtol=1e-15)


@pytest.mark.parametrize("merged_at", [1, 1000])
def test_probabilities_sum_to_one(monkeypatch: pytest.MonkeyPatch, merged_at: int) -> None:
    monkeypatch.setattr(baselines, "MERGED_AT", merged_at)
    generator = np.random.default_rng(0)
    batches = [batch(*map(tuple, generator.integers(0, 40, (100, 2)).tolist())) for _ in range(5)]
    table = BigramTable(batches, 50)  # tokens 40 to 49 are never seen
    before, after = np.meshgrid(np.arange(50), np.arange(50), indexing="ij")
    found = table.probability(before.ravel(), after.ravel()).reshape(50, 50)
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)


def test_scores_by_hand_with_the_ends_of_documents(tmp_path: Path) -> None:
    text = corpus(tmp_path, b"ab", b"a")
    end = 256
    table = BigramTable([batch((end, 97), (97, 98), (98, end))], 257)
    found = table.score(text)

    def bits(*pairs: tuple[int, int]) -> float:
        before, after = np.array(pairs).T
        return -np.log2(table.probability(before, after)).sum()

    np.testing.assert_allclose(found.bits, [bits((end, 97), (97, 98), (98, end)), bits((end, 97), (97, end))])
    assert found.bytes.tolist() == [2, 1]


@pytest.mark.parametrize(("context", "max_tokens", "part"), [(None, None, None), (16, None, 2), (16, 100, None)])
def test_it_scores_what_a_model_scores(
    tmp_path: Path, context: int | None, max_tokens: int | None, part: int | None
) -> None:
    text = corpus(tmp_path, b"the quick brown fox " * 9, b"jumps over\n" * 20, b"x")
    model = LanguageModel(LanguageModelConfig(vocab_size=257, width=8, layers="attention"), seed=0)
    table = BigramTable(map(PackedBatches(text, 16, 2).at, range(10)), 257)
    expected = score(model, text, context=context, max_tokens=max_tokens, part=part)
    found = table.score(text, context=context, max_tokens=max_tokens, part=part)
    assert found.documents.tolist() == expected.documents.tolist()
    assert found.bytes.tolist() == expected.bytes.tolist()
    assert 0 < found.bits_per_byte < math.log2(257)


def test_gzip_is_gzip(tmp_path: Path) -> None:
    texts = [b"the quick brown fox " * 50, bytes(range(32, 127)) * 3]
    found = gzip_bits_per_byte(corpus(tmp_path, *texts))
    whole = b"".join(texts)
    assert found == 8 * len(gzip.compress(whole, 9)) / len(whole)
