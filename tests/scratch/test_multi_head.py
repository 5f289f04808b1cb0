from __future__ import annotations

import numpy as np
import pytest
import torch

from lavagna.errors import InputError
from lavagna.ops import attention as operator
from lavagna.scratch import Heads, causal_mask, multi_head, multi_head_backward
from lavagna.scratch.multi_head import merge_heads, share, split_heads

from .support import close, draw, gradients_agree


def parameters(d: int = 8, groups_width: int = 8) -> dict[str, np.ndarray]:
    widths = {"q": d, "k": groups_width, "v": groups_width, "o": d}
    matrices = {f"W{name}": draw(d, width, seed=ord(name)) / np.sqrt(d) for name, width in widths.items()}
    return matrices | {f"b{name}": draw(width, seed=ord(name)) for name, width in widths.items()}


def test_split_gives_each_head_its_channels_of_every_token() -> None:
    x = np.arange(2 * 3 * 6.0).reshape(2, 3, 6)
    heads = split_heads(x, 2)
    assert heads.shape == (2, 2, 3, 3)
    for h in range(2):
        np.testing.assert_array_equal(heads[:, h], x[:, :, 3 * h : 3 * h + 3])
    np.testing.assert_array_equal(merge_heads(heads), x)


def test_heads_of_a_group_stand_in_a_row() -> None:
    x = np.arange(2.0).reshape(1, 2, 1, 1)
    assert share(x, 6)[0, :, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("rotary", [False, True])
def test_gradient(groups: int, rotary: bool) -> None:
    heads, x, R = Heads(4, groups, rotary=rotary), draw(2, 3, 8), draw(2, 3, 8, seed=1)
    p = parameters(groups_width=2 * groups)
    mask = causal_mask(3)
    _, run = multi_head(x, p, heads, mask)
    dx, gradients = multi_head_backward(R, p, heads, run)
    gradients_agree(lambda: float((multi_head(x, p, heads, mask)[0] * R).sum()), {"x": x, **p}, {"x": dx, **gradients})


@pytest.mark.parametrize("groups", [4, 2, 1])
def test_equals_the_operator(groups: int) -> None:
    x, p = draw(2, 5, 8), parameters(groups_width=2 * groups)
    q, k, v = (x @ p[f"W{name}"] + p[f"b{name}"] for name in "qkv")
    q, k, v = (torch.from_numpy(part.reshape(2, 5, -1, 2)) for part in (q, k, v))
    expected = operator(q, k, v).output.flatten(2).numpy() @ p["Wo"] + p["bo"]
    close(multi_head(x, p, Heads(4, groups), causal_mask(5))[0], expected)


def test_groups_equal_heads_with_repeated_weights() -> None:
    x, p = draw(2, 5, 8), parameters(groups_width=4)

    def repeat(matrix: np.ndarray) -> np.ndarray:
        parts = matrix.reshape(*matrix.shape[:-1], 2, 2)
        return np.repeat(parts, 2, axis=-2).reshape(*matrix.shape[:-1], 8)

    full = p | {name: repeat(p[name]) for name in ("Wk", "bk", "Wv", "bv")}
    close(multi_head(x, p, Heads(4, 2))[0], multi_head(x, full, Heads(4, 4))[0])


def test_protocol_heads() -> None:
    rng = np.random.default_rng(11)
    X = rng.normal(size=(1, 6, 64))
    p = {name: rng.normal(size=(64, 64)) / 8 for name in ("Wq", "Wk", "Wv", "Wo")}
    p |= {name: np.zeros(64) for name in ("bq", "bk", "bv", "bo")}
    order = rng.permutation(6)
    gaps = []
    for h in (1, 2, 4, 8):
        y, permuted = (multi_head(x, p, Heads(h, h))[0] for x in (X, X[:, order]))
        close(permuted, y[:, order], 1e-14)  # without positions a permutation goes through
        gaps.append(f"{np.abs(permuted - y).max():.3f}")
    assert gaps[2] == "1.849"
    assert len(set(gaps)) == 4  # heads share the parameters and do not compute the same
    assert sum(matrix.size for name, matrix in p.items() if name[0] == "W") == 16_384


def test_heads_permuted_together_with_their_weights_change_nothing() -> None:
    x, p, order = draw(2, 5, 8), parameters(), [2, 0, 3, 1]
    columns = np.arange(8).reshape(4, 2)[order].reshape(-1)
    moved = {name: p[name][..., columns] for name in ("Wq", "Wk", "Wv", "bq", "bk", "bv")}
    moved |= {"Wo": p["Wo"][columns], "bo": p["bo"]}
    close(multi_head(x, moved, Heads(4, 4))[0], multi_head(x, p, Heads(4, 4))[0])


def test_an_intervention_replaces_weights_and_values() -> None:
    x, p = draw(1, 4, 8), parameters()
    y, run = multi_head(x, p, Heads(2, 2))
    same, _ = multi_head(x, p, Heads(2, 2), intervene=lambda A, V: (A, V))
    close(same, y, 0)
    eye = np.broadcast_to(np.eye(4), run.A.shape)  # every token looks at itself alone
    only, changed = multi_head(x, p, Heads(2, 2), intervene=lambda A, V: (eye, V))
    close(only, (x @ p["Wv"] + p["bv"]) @ p["Wo"] + p["bo"])
    np.testing.assert_array_equal(changed.A, eye)


def test_groups_that_do_not_divide_the_heads_are_refused() -> None:
    with pytest.raises(InputError, match="4 heads cannot share 3 groups"):
        multi_head(draw(1, 2, 8), parameters(), Heads(4, 3))
