from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lavagna.errors import ConfigError, InputError
from lavagna.scratch import (
    Config,
    Decoder,
    block_parameters,
    check_gradients,
    cross_entropy,
    cross_entropy_backward,
    padding_mask,
)
from lavagna.scratch.block import Norm
from lavagna.scratch.decoder import Run
from lavagna.scratch.positions import POSITIONS, Position

from .support import close, draw, gradients_agree, torch_block

TINY = {"vocab": 5, "d": 4, "heads": 2, "layers": 2, "d_ff": 6, "t_max": 6}


def tiny(seed: int = 0, **options: object) -> Decoder:
    """A decoder without a parameter that is still zero or one."""
    decoder = Decoder(Config(**TINY | options), np.random.default_rng(seed))  # type: ignore[arg-type]
    for i, theta in enumerate(decoder.params.values()):
        theta += 0.3 * draw(*theta.shape, seed=i)
    return decoder


def tokens(*shape: int, vocab: int = 5) -> np.ndarray:
    return np.random.default_rng(1).integers(0, vocab, shape)


def gradients_of(
    decoder: Decoder, inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray, padding: np.ndarray | None = None
) -> tuple[Callable[[], float], dict[str, np.ndarray]]:
    """The loss as a function of the parameters' present values, and its gradients."""

    def loss() -> float:
        return cross_entropy(decoder.forward(inputs, padding=padding)[0], targets, weights)[0]

    logits, run = decoder.forward(inputs, padding=padding)
    _, loss_run = cross_entropy(logits, targets, weights)
    return loss, decoder.backward(cross_entropy_backward(loss_run), run)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("position", POSITIONS)
def test_every_gradient(norm: Norm, position: Position) -> None:
    decoder = tiny(norm=norm, position=position)
    loss, gradients = gradients_of(decoder, tokens(2, 4), tokens(2, 4), np.array([[0, 0, 1, 1.0]] * 2))
    gradients_agree(loss, decoder.params, gradients)


def test_every_gradient_with_shared_keys_padding_and_no_scale() -> None:
    decoder = tiny(groups=1, scale=1.0)
    padding = padding_mask([4, 2], 4)
    loss, gradients = gradients_of(decoder, tokens(2, 4), tokens(2, 4), padding.astype(float), padding=padding)
    gradients_agree(loss, decoder.params, gradients)


def test_a_token_that_occurs_twice_hears_twice() -> None:
    decoder = tiny(position="none")
    _, run = decoder.forward(np.array([[3, 3, 1]]))
    gradients = decoder.backward(np.ones((1, 3, 5)) * draw(5), run)
    assert gradients["E"][[3, 1]].all()
    assert not gradients["E"][[0, 2, 4]].any()


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_whole_decoder_equals_torch(norm: Norm) -> None:
    """The same network out of torch's own layers."""
    decoder = tiny(norm=norm, position="sinusoidal")
    p = {name: torch.from_numpy(value) for name, value in decoder.params.items()}
    inputs = tokens(2, 5)
    x = p["E"][torch.from_numpy(inputs)]
    angle = torch.arange(5, dtype=torch.float64)[:, None] / 10000 ** (torch.tensor([0.0, 2.0]) / 4).double()
    x = x + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    for i in range(2):
        layer = torch_block(decoder.layer(i), norm, 2)
        x = layer(x, src_mask=torch.ones(5, 5, dtype=torch.bool).triu(1))
    x = torch.nn.functional.layer_norm(x, (4,), p["gamma"], p["beta"])
    close(decoder.forward(inputs)[0], (x @ p["Wout"] + p["bout"]).detach())


def test_parameters_are_as_many_as_the_protocol_says() -> None:
    decoder = Decoder(Config(vocab=21, t_max=13), np.random.default_rng(0))
    assert decoder.size == 27_253
    assert sum(theta.size for theta in decoder.layer(0).values()) == block_parameters(32)


def test_initial_values_are_drawn_in_the_order_of_the_protocol() -> None:
    decoder = Decoder(Config(**TINY), np.random.default_rng(4))
    rng = np.random.default_rng(4)
    d, d_ff = TINY["d"], TINY["d_ff"]
    close(decoder.params["E"], 0.1 * rng.normal(size=(5, d)), 0)
    close(decoder.params["P"], 0.1 * rng.normal(size=(6, d)), 0)
    for layer in range(2):
        for name in ("Wq", "Wk", "Wv", "Wo"):
            close(decoder.params[f"{layer}.{name}"], rng.normal(size=(d, d)) / np.sqrt(d), 1e-15)
        close(decoder.params[f"{layer}.W1"], rng.normal(size=(d, d_ff)) / np.sqrt(d), 1e-15)
        close(decoder.params[f"{layer}.W2"], rng.normal(size=(d_ff, d)) / np.sqrt(d_ff), 1e-15)
    close(decoder.params["Wout"], rng.normal(size=(d, 5)) / np.sqrt(d), 1e-15)
    vectors = {name.split(".")[-1]: theta for name, theta in decoder.params.items() if theta.ndim == 1}
    assert all((theta == (1 if name.startswith("gamma") else 0)).all() for name, theta in vectors.items())


def test_the_past_does_not_see_the_future() -> None:
    decoder, inputs = tiny(), tokens(1, 6)
    logits, _ = decoder.forward(inputs)
    for t in range(6):
        changed = inputs.copy()
        changed[0, t] = (changed[0, t] + 1) % 5
        gap = np.abs(decoder.forward(changed)[0] - logits)[0].max(-1)
        assert not gap[:t].any()
        assert gap[t] > 0


def test_padding_changes_nothing() -> None:
    decoder, inputs = tiny(), tokens(2, 5)
    logits, _ = decoder.forward(inputs, padding=padding_mask([5, 3], 5))
    close(logits[1, :3], decoder.forward(inputs[1:, :3])[0][0])
    close(logits[0], decoder.forward(inputs[:1])[0][0])


def test_left_padding_is_not_seen() -> None:
    decoder = tiny(position="rotary")  # only distances count, so that a shift changes nothing
    inputs = tokens(1, 5)
    padding = np.array([[False, False, True, True, True]])
    logits, run = decoder.forward(inputs, padding=padding)
    close(logits[:, 2:], decoder.forward(inputs[:, 2:])[0])
    assert not run.weights[0][0, :, :2].any()  # a row that sees nothing weighs nothing
    assert np.isfinite(logits).all()


def test_without_positions_the_order_of_earlier_tokens_is_invisible_to_one_layer() -> None:
    decoder = tiny(position="none", layers=1)
    there, back = (decoder.forward(np.array([order]))[0][0, -1] for order in ([0, 1, 2, 3], [2, 0, 1, 3]))
    close(there, back)
    learned = tiny(layers=1)
    there, back = (learned.forward(np.array([order]))[0][0, -1] for order in ([0, 1, 2, 3], [2, 0, 1, 3]))
    assert np.abs(there - back).max() > 1e-3


def test_what_a_run_shows() -> None:
    decoder, inputs = tiny(), tokens(2, 5)
    _, run = decoder.forward(inputs)
    assert [A.shape for A in run.weights] == [(2, 2, 5, 5)] * 2
    close(np.stack(run.weights).sum(-1), np.ones((2, 2, 2, 5)))
    assert [x.shape for x in run.states] == [(2, 5, 4)] * 3
    close(run.states[0], decoder.params["E"][inputs] + decoder.params["P"][:5])
    assert run.relus.shape == (2 * 2 * 5 * 6,)


def test_intervening_in_one_layer() -> None:
    decoder, inputs = tiny(), tokens(1, 4)
    logits, run = decoder.forward(inputs)
    asked: list[int] = []

    def swap(layer: int, A: np.ndarray, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        asked.append(layer)
        return (A, V[:, :, [1, 0, 2, 3]]) if layer == 1 else (A, V)

    changed, other = decoder.forward(inputs, intervene=swap)
    assert asked == [0, 1]
    close(other.states[1], run.states[1], 0)
    assert np.abs(changed - logits)[0].max(-1).all()


def test_no_backward_where_it_would_be_another_functions() -> None:
    decoder, inputs = tiny(), tokens(1, 4)
    for options in ({"caches": decoder.caches(1, 4)}, {"intervene": lambda layer, A, V: (A, V)}):
        logits, run = decoder.forward(inputs, **options)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="without caches and intervention"):
            decoder.backward(logits, run)


GRADCHECK = {"pre": "0.0994", "post": "0.0066"}


@pytest.mark.parametrize("norm", GRADCHECK)
def test_protocol_gradcheck(norm: Norm) -> None:
    rng = np.random.default_rng(0)
    decoder = Decoder(Config(vocab=21, d=16, heads=4, layers=2, d_ff=64, t_max=13, norm=norm), rng)
    inputs, targets = (rng.integers(0, 21, (3, 12)) for _ in range(2))
    weights = np.zeros((3, 12))
    weights[:, 6:] = 1

    def run() -> tuple[float, Run, np.ndarray]:
        logits, run = decoder.forward(inputs)
        loss, loss_run = cross_entropy(logits, targets, weights)
        return loss, run, cross_entropy_backward(loss_run)

    _, first, dlogits = run()
    gradients = decoder.backward(dlogits, first)

    def worst(epsilon: float) -> tuple[float, float]:
        """The largest error, of all coordinates and of those without a kink."""
        found = list(
            check_gradients(
                lambda: run()[0],
                decoder.params,
                gradients,
                epsilon=epsilon,
                count=6,
                above=1e-6,
                pattern=lambda: run()[1].relus,
            )
        )
        assert len(found) > 150
        return max(c.error for c in found), max(c.error for c in found if not c.kink)

    fine, _ = worst(1e-6)
    coarse, smooth = worst(1e-4)
    assert fine <= 1e-3
    assert f"{coarse:.4f}" == GRADCHECK[norm]
    assert coarse >= 10 * fine
    assert smooth < coarse / 10  # what the larger step adds comes from the kinks


def test_tokens_and_positions_beyond_the_tables_are_refused() -> None:
    decoder = tiny()
    with pytest.raises(InputError, match="tokens must be 0 to 4, got 0 to 5"):
        decoder.forward(np.array([[0, 5]]))
    with pytest.raises(InputError, match="tokens must be 0 to 4, got -1 to 0"):
        decoder.forward(np.array([[0, -1]]))
    with pytest.raises(InputError, match=r"integers \(B, T\), T > 0, got float64 \(1, 2\)"):
        decoder.forward(np.zeros((1, 2)))
    with pytest.raises(InputError, match=r"end at 5 \(T_max = 6\), got position 6"):
        decoder.forward(tokens(1, 7))
    for position in ("none", "sinusoidal", "rotary"):
        assert np.isfinite(tiny(position=position).forward(tokens(1, 40))[0]).all()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"d": 6, "heads": 4}, "d must be a multiple of heads, got d 6 and 4 heads"),
        ({"groups": 3}, "groups must divide heads, got 3 groups and 2 heads"),
        ({"layers": 0}, "layers must be at least 1, got 0"),
        ({"norm": "per"}, "unknown norm 'per'; did you mean 'pre'"),
        ({"position": "rotation"}, "unknown position 'rotation'; did you mean 'rotary'"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(option: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config(**TINY | option)  # type: ignore[arg-type]
