"""Reading in chunks and going on token by token: whatever the cuts, the batch and the process, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lavagna.errors import InputError, StateError
from lavagna.generation import Generated, Reading, Sampling, generate, read, stream
from lavagna.models import LanguageModel
from tests.support.budget import check, close
from tests.support.models import LAYERS, float64_twin, make_model

ALL = pytest.mark.parametrize("layers", LAYERS)
GREEDY = Sampling(temperature=0)
LENGTHS = [5, 1, 9]


def prompts(lengths: list[int] = LENGTHS, seed: int = 1) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 257, (n,), generator=generator) for n in lengths]


def recomputed(model: LanguageModel, prompt: Tensor, count: int) -> tuple[list[int], Tensor]:
    """Greedy tokens by reading the whole text anew for each, and the logits they were chosen from."""
    text, logits = prompt, []
    for _ in range(count):
        logits.append(model(text[None]).logits[0, -1].detach())
        text = torch.cat([text, logits[-1].argmax()[None]])
    return text[len(prompt) :].tolist(), torch.stack(logits)


def stepwise_logits(model: LanguageModel, prompt: Tensor, tokens: list[int]) -> Tensor:
    """Logits before each of these tokens, from the state."""
    reading = read(model, [prompt], prefill_chunk=3)
    logits, state = [reading.logits[0]], reading.state
    for token in tokens[:-1]:
        out, state = model(torch.tensor([[token]]), state=state)
        logits.append(out[0, -1])
    return torch.stack(logits).detach()


@ALL
@pytest.mark.parametrize("position", ["none", "sinusoidal"])
def test_greedy_tokens_are_those_of_full_recomputation(layers: str, position: str) -> None:
    model = make_model(layers, dtype=torch.float64, position=position)
    generated = generate(model, prompts(), max_tokens=12, sampling=GREEDY)
    for prompt, tokens in zip(prompts(), generated.tokens, strict=True):
        expected, logits = recomputed(model, prompt, 12)
        assert tokens.tolist() == expected
        close("logits", stepwise_logits(model, prompt, expected), logits)
    assert len({tuple(tokens.tolist()) for tokens in generated.tokens}) == len(LENGTHS)


@ALL
def test_float32_logits_from_the_state_are_within_budget(layers: str) -> None:
    model = make_model(layers)
    (prompt,) = prompts([9])
    exact_tokens, exact = recomputed(float64_twin(model), prompt, 12)
    same = torch.stack(
        [
            model(torch.cat([prompt, torch.tensor(exact_tokens[:n], dtype=torch.int64)])[None]).logits[0, -1]
            for n in range(12)
        ]
    )
    check("logits", stepwise_logits(model, prompt, exact_tokens), same.detach(), exact)


@ALL
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=7, temperature=1.5)])
def test_a_batch_of_different_lengths_is_each_alone(layers: str, sampling: Sampling) -> None:
    model = make_model(layers, dtype=torch.float64, position="sinusoidal")
    together = generate(model, prompts(), max_tokens=10, sampling=sampling, prefill_chunk=4)
    for row, prompt in enumerate(prompts()):
        own = sampling.model_copy(update={"seed": sampling.seed + row})
        alone = generate(model, [prompt], max_tokens=10, sampling=own)
        assert together.tokens[row].tolist() == alone.tokens[0].tolist()
        close("after", together.readings[row].logits, alone.readings[0].logits)


@ALL
def test_the_prefill_chunk_changes_nothing(layers: str) -> None:
    model = make_model(layers, dtype=torch.float64, position="sinusoidal")
    whole = read(model, prompts())
    more = torch.randint(0, 257, (3, 2))
    for chunk in (1, 2, 5, 100):
        seen: list[tuple[int, int]] = []
        reading = read(model, prompts(), prefill_chunk=chunk, on_progress=lambda *at, seen=seen: seen.append(at))
        assert seen == [(min(n, 9), 9) for n in range(chunk, 9 + chunk, chunk)]
        close("logits", reading.logits, whole.logits)
        close("after", model(more, state=reading.state).logits, model(more, state=whole.state).logits)


@ALL
def test_a_text_read_in_two_calls_is_one_text(layers: str) -> None:
    """Rows that get nothing in the second call keep what they knew."""
    model = make_model(layers, dtype=torch.float64)
    first, second = prompts([4, 1, 6]), prompts([3, 0, 2], seed=2)
    whole = read(model, [torch.cat(pair) for pair in zip(first, second, strict=True)])
    cut = read(model, second, read(model, first))
    close("logits", cut.logits, whole.logits)
    assert torch.equal(read(model, prompts([0, 0, 0]), cut).logits, cut.logits)


@ALL
def test_what_was_generated_can_be_gone_on_from(layers: str) -> None:
    model = make_model(layers, dtype=torch.float64)
    whole = generate(model, prompts(), max_tokens=10, sampling=GREEDY)
    part = generate(model, prompts(), max_tokens=4, sampling=GREEDY)
    assert [len(tokens) for tokens in part.tokens] == [4, 4, 4]
    for row in range(3):
        rest = generate(model, prompts([0]), after=part.readings[row], max_tokens=6, sampling=GREEDY)
        assert [*part.tokens[row].tolist(), *rest.tokens[0].tolist()] == whole.tokens[row].tolist()


@ALL
def test_beams_reorder_every_part_of_the_state(layers: str) -> None:
    """Two beams, exchanged and doubled as a search would: the same as reading each beam's text anew (fault 16)."""
    model = make_model(layers, dtype=torch.float64)
    texts = prompts([6, 4])
    reading = read(model, texts)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        parents = torch.randint(0, 2, (2,), generator=generator)
        tokens = torch.randint(0, 257, (2, 1), generator=generator)
        texts = [torch.cat([texts[int(p)], token]) for p, token in zip(parents, tokens, strict=True)]
        reading = read(model, list(tokens), reading.reorder(parents))
        close("beams", reading.logits, read(model, texts).logits)


@ALL
def test_forks_go_their_own_ways(layers: str) -> None:
    model = make_model(layers, dtype=torch.float64)
    reading = read(model, prompts([5, 3])).fork(3)
    assert reading.logits.shape == (6, 257)
    rows = {tuple(tokens) for tokens in drawn(model, reading, Sampling(temperature=3.0), 8)}
    assert len(rows) == 6
    greedy = drawn(model, reading, GREEDY, 8)
    assert greedy[0] == greedy[1] == greedy[2]
    assert greedy[3] == greedy[4] == greedy[5] != greedy[0]


def drawn(model: LanguageModel, reading: Reading, sampling: Sampling, count: int) -> list[list[int]]:
    steps = list(stream(model, reading, max_tokens=count, sampling=sampling))
    return [[new[row] for _, new, _ in steps] for row in range(len(reading.logits))]


@ALL
def test_two_generations_may_take_turns(layers: str) -> None:
    """No state is kept on the model (fault 15)."""
    model = make_model(layers)
    alone = [drawn(model, read(model, [prompt]), GREEDY, 6)[0] for prompt in prompts([5, 7])]
    streams = [stream(model, read(model, [prompt]), max_tokens=6, sampling=GREEDY) for prompt in prompts([5, 7])]
    taken = [[new[0] for _, new, _ in steps] for steps in zip(*zip(*streams, strict=True), strict=True)]
    assert taken == alone


@ALL
def test_half_precision_models_generate_with_a_state_that_is_not_rounded(layers: str) -> None:
    """bfloat16 weights, float32 memory: after 200 tokens the logits are those of one long pass (fault 19)."""
    model = make_model(layers, dtype=torch.bfloat16)
    (prompt,) = prompts([200])
    whole = model(prompt[None]).logits[0, -1].detach()
    exact = float64_twin(model)(prompt[None]).logits[0, -1].detach()
    stepwise = read(model, [prompt], prefill_chunk=1).logits[0].detach()
    check("logits", stepwise, whole, exact)
    tokens = generate(model, [prompt], max_tokens=5, sampling=GREEDY)
    assert tokens.readings[0].logits.dtype == torch.bfloat16


@ALL
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_reading_goes_on_exactly(layers: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_model(layers, dtype=dtype)
    model.save(tmp_path / "model")
    document, question = prompts([40, 6])
    reading = read(model, [document])
    reading.save(tmp_path / "state", model)
    here = generate(model, [question], after=reading, max_tokens=8)
    other = LanguageModel.load(tmp_path / "model")
    there = generate(other, [question], after=Reading.load(tmp_path / "state", other), max_tokens=8)
    assert here.tokens[0].tolist() == there.tokens[0].tolist()
    assert torch.equal(here.readings[0].logits, there.readings[0].logits)


def test_a_state_without_logits_is_no_reading(tmp_path: Path) -> None:
    model = make_model()
    model.init_state(1).save(tmp_path / "state", model)
    with pytest.raises(StateError, match="holds a state without the logits that generation goes on from"):
        Reading.load(tmp_path / "state", model)


@ALL
def test_rows_end_where_they_should(layers: str) -> None:
    """A row ends with an end token, or when it is told to; others go on as if nothing had been."""
    model = make_model(layers, dtype=torch.float64)
    free = generate(model, prompts(), max_tokens=8, sampling=GREEDY)
    end = int(free.tokens[1][2])
    ended = generate(model, prompts(), max_tokens=8, sampling=GREEDY, end_tokens=frozenset([end]))
    for row, tokens in enumerate(free.tokens):
        expected = tokens.tolist()
        if end in expected:
            expected = expected[: expected.index(end) + 1]
        assert ended.tokens[row].tolist() == expected
        text = torch.cat([prompts()[row], ended.tokens[row]])
        close("after", ended.readings[row].logits, read(model, [text]).logits)
    assert len(ended.tokens[1]) <= 3

    asked = []
    steps = list(
        stream(
            model,
            read(model, prompts()),
            max_tokens=4,
            sampling=GREEDY,
            stopped=lambda row: asked.append(row) or row == 0,
        )
    )
    assert [rows for rows, _, _ in steps] == [[0, 1, 2], [1, 2], [1, 2], [1, 2]]
    assert all(len(reading.logits) == len(rows) for rows, _, reading in steps)


def test_it_ends_when_all_rows_have() -> None:
    model = make_model()
    steps = list(stream(model, read(model, prompts()), max_tokens=9, stopped=lambda row: True))
    assert len(steps) == 1


def test_only_the_tokens_of_the_vocabulary_are_chosen() -> None:
    """A model's vocabulary may be padded: its likeliest token is one that stands for nothing."""
    model = make_model(tied=False)
    with torch.no_grad():
        model.head.get_parameter("weight")[256] = 1e3 * model.hidden(prompts()[0][None])[0][0, -1]
    reading = read(model, prompts()[:1])
    assert next(stream(model, reading, max_tokens=1, sampling=GREEDY))[1] == [256]
    assert next(stream(model, reading, max_tokens=1, sampling=GREEDY, choices=256))[1] != [256]


def test_nothing_is_asked_for_nothing_comes() -> None:
    model = make_model()
    assert [tokens.tolist() for tokens in generate(model, prompts(), max_tokens=0).tokens] == [[], [], []]
    assert generate(model, prompts(), max_tokens=0).tokens[0].dtype == torch.int64


def test_no_graph_is_built() -> None:
    model = make_model()
    generated: Generated = generate(model, prompts(), max_tokens=2)
    assert not generated.readings[0].logits.requires_grad


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"prompts": []}, "expected at least one prompt, got none"),
        ({"prompts": prompts([3, 0])}, "expected at least one token in each prompt, got an empty one"),
        ({"max_tokens": -1}, "max_tokens must not be negative, got -1"),
        ({"prefill_chunk": 0}, "prefill_chunk must be at least 1, got 0"),
    ],
)
def test_wrong_arguments_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(make_model(), **{"prompts": prompts(), "max_tokens": 1, **keys})


def test_prompts_must_be_as_many_as_were_read() -> None:
    model = make_model()
    with pytest.raises(InputError, match="expected 3 prompts, one for each row read before, got 2"):
        read(model, prompts([1, 1]), read(model, prompts()))
