from __future__ import annotations

import numpy as np
import pytest

from lavagna.errors import InputError, ShapeError
from lavagna.scratch import (
    Config,
    Decoder,
    Heads,
    LayerCache,
    cache_bytes,
    causal_mask,
    generate,
    multi_head,
    padding_mask,
)
from lavagna.scratch.positions import POSITIONS, Position

from .support import close, draw


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("groups", [4, 1])
def test_any_split_equals_the_whole(position: Position, groups: int) -> None:
    decoder = Decoder(Config(vocab=7, d=16, t_max=12, position=position, groups=groups), np.random.default_rng(0))
    tokens = np.random.default_rng(1).integers(0, 7, (2, 12))
    whole, _ = decoder.forward(tokens)
    for split in ([12], [1] * 12, [5, 4, 3]):
        caches = decoder.caches(2, 12)
        parts = [decoder.forward(part, caches=caches)[0] for part in np.split(tokens, np.cumsum(split)[:-1], 1)]
        close(np.concatenate(parts, 1), whole)


def test_padding_in_the_cache_stays_hidden() -> None:
    decoder = Decoder(Config(vocab=7, d=16, position="rotary"), np.random.default_rng(0))
    tokens = np.random.default_rng(1).integers(0, 7, (1, 6))
    padding = np.array([[False, False, True, True, True, True]])
    caches = decoder.caches(1, 6)
    decoder.forward(tokens[:, :4], padding=padding[:, :4], caches=caches)
    logits, _ = decoder.forward(tokens[:, 4:], padding=padding, caches=caches)
    close(logits, decoder.forward(tokens[:, 2:])[0][:, 2:])


@pytest.mark.parametrize("position", POSITIONS)
def test_generation_with_and_without_cache_is_the_same(position: Position) -> None:
    decoder = Decoder(Config(vocab=7, d=16, t_max=20, position=position), np.random.default_rng(2))
    decoder.params["E"] *= 20  # or all sequences would go the same way
    prompt = np.random.default_rng(3).integers(0, 7, (4, 5))
    with_cache, without = (generate(decoder, prompt, 12, cached=cached) for cached in (True, False))
    assert with_cache.shape == (4, 12)
    assert len(np.unique(with_cache)) > 2
    np.testing.assert_array_equal(with_cache, without)


def test_generation_refuses_an_empty_prompt_and_the_end_of_the_table() -> None:
    decoder = Decoder(Config(vocab=7, d=16, t_max=5), np.random.default_rng(2))
    with pytest.raises(InputError, match=r"T > 0, got int64 \(1, 0\)"):
        generate(decoder, np.zeros((1, 0), int), 1)
    assert generate(decoder, np.zeros((1, 3), int), 3).shape == (1, 3)  # the last answer is not read again
    with pytest.raises(InputError, match=r"T_max = 5\), got position 5"):
        generate(decoder, np.zeros((1, 3), int), 4)


def test_protocol_cache() -> None:
    """Four layers of attention and residual; each output, brought to length √d, is the next input."""
    rng = np.random.default_rng(5)
    d, h, layers, start, new = 256, 8, 4, 32, 128
    stack = [
        {name: rng.normal(size=(d, d)) / np.sqrt(d) for name in ("Wq", "Wk", "Wv", "Wo")}
        | {name: np.zeros(d) for name in ("bq", "bk", "bv", "bo")}
        for _ in range(layers)
    ]
    prompt = rng.normal(size=(start, d))

    def last(x: np.ndarray, caches: list[LayerCache] | None) -> np.ndarray:
        seen = caches[0].length if caches else 0
        for i, p in enumerate(stack):
            mask = causal_mask(x.shape[1], seen + x.shape[1])
            y, _ = multi_head(x, p, Heads(h, h), mask, cache=caches[i] if caches else None)
            x = x + y
        x = x[:, -1:]
        return x * np.sqrt(d) / np.linalg.norm(x)

    caches = [LayerCache(1, h, start + new, d // h) for _ in range(layers)]
    whole = read = prompt[None]
    for _ in range(new):
        with_cache = last(read, caches)
        if whole.shape[1] % 16 == 0:  # every sixteenth token, to be quick
            close(with_cache, last(whole, None), 1e-12)
        whole, read = np.concatenate([whole, with_cache], 1), with_cache
    assert caches[0].length == start + new - 1
    assert sum(cache.K.nbytes + cache.V.nbytes for cache in caches) == cache_bytes(layers, h, d // h, start + new)


def test_protocol_memory() -> None:
    assert cache_bytes(4, 8, 32, 160) / 2**20 == 2.5
    assert cache_bytes(32, 32, 128, 4096, bytes_per_number=2) / 2**30 == 2.0
    assert cache_bytes(32, 1, 128, 4096, bytes_per_number=2) / 2**30 == 0.0625
    assert cache_bytes(1, 1, 1, 3, B=5) == 2 * 3 * 5 * 8


def test_a_full_cache_and_a_wrong_shape_are_refused() -> None:
    cache = LayerCache(1, 2, 4, 3)
    cache.extend(draw(1, 2, 3, 3), draw(1, 2, 3, 3))
    with pytest.raises(InputError, match="room for 4 tokens, got token 5"):
        cache.extend(draw(1, 2, 2, 3), draw(1, 2, 2, 3))
    with pytest.raises(ShapeError, match=r"V must have shape \(1, 2, 1, 3\), got \(1, 2, 2, 3\)"):
        cache.extend(draw(1, 2, 1, 3), draw(1, 2, 2, 3))
    assert cache.length == 3


def test_padding_mask_must_count_the_tokens_of_the_cache() -> None:
    decoder = Decoder(Config(vocab=7, d=16), np.random.default_rng(0))
    caches = decoder.caches(1, 6)
    decoder.forward(np.zeros((1, 4), int), caches=caches)
    with pytest.raises(ShapeError, match="as many keys"):
        decoder.forward(np.zeros((1, 2), int), padding=padding_mask([2], 2), caches=caches)
