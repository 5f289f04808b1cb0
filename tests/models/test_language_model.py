"""A whole model: what it computes, what it refuses, what it writes to disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lavagna.errors import ConfigError, InputError, ShapeError, StateError
from lavagna.models import Classifier, ClassifierConfig, LanguageModel
from tests.support.budget import close
from tests.support.models import LAYERS, make_config, make_model

SHAPES: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "untied": {"tied": False},
    "post-norm, layernorm, relu": {"norm_position": "post", "norm": "layernorm", "mlp": "relu", "final_norm": False},
    "sinusoidal": {"position": "sinusoidal", "mlp": "none"},
    "learned": {"position": "learned", "max_positions": 64, "mlp": "gelu", "norm": "layernorm"},
}


def tokens(batch: int = 2, time: int = 20, vocab_size: int = 257) -> torch.Tensor:
    return torch.randint(0, vocab_size, (batch, time), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_block_at_a_time(layers: str, shape: dict[str, Any]) -> None:
    """The model is its parts put together as its configuration says."""
    model = make_model(layers, dtype=torch.float64, **shape)
    ids = tokens()
    x = model.embedding.weight[ids]
    width, time = model.config.width, ids.shape[1]
    if model.config.position == "learned":
        x = x + model.get_parameter("positions")[:time]
    if model.config.position == "sinusoidal":
        angle = torch.arange(time)[:, None] * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
        x = x + torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
    for block in model.stack():
        branches = [(block.mixer_norm, block.mixer), (block.mlp_norm, block.mlp)]
        for norm, layer in branches:
            if layer is None or norm is None:
                assert model.config.mlp_of(model.config.layers[0]) is None
            elif model.config.norm_position == "pre":
                x = x + layer(norm(x))[0]
            else:
                x = norm(x + layer(x)[0])
    if model.config.final_norm:
        x = model.final_norm(x)
    head = model.embedding.weight if model.config.tied else model.head.weight
    close("logits", model(ids).logits, x @ head.T)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("tied", [True, False])
def test_saved_and_loaded_models_are_the_same(tmp_path: Path, layers: str, dtype: torch.dtype, tied: bool) -> None:
    model = make_model(layers, dtype=dtype, tied=tied)
    model.save(tmp_path / "model")
    again = LanguageModel.load(tmp_path / "model")
    assert again.config == model.config
    assert {p.dtype for p in again.parameters()} == {dtype}
    assert (again.head.weight is again.embedding.weight) == tied
    assert torch.equal(again(tokens()).logits, model(tokens()).logits)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


def test_a_classifier_is_saved_too_and_is_no_language_model(tmp_path: Path) -> None:
    config = ClassifierConfig.parse({**make_config().model_dump(exclude={"tied"}), "classes": 3, "pooling": "mean"})
    model = Classifier(config, seed=0)
    model.save(tmp_path / "model")
    assert torch.equal(Classifier.load(tmp_path / "model")(tokens()), model(tokens()))
    with pytest.raises(ConfigError, match="holds a Classifier, expected a LanguageModel"):
        LanguageModel.load(tmp_path / "model")


def test_saving_over_a_model_replaces_it_and_a_failure_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_model(seed=0), make_model(seed=1)
    first.save(tmp_path / "model")

    def fails(*arguments: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_model", fails)
        with pytest.raises(OSError, match="no space"):
            second.save(tmp_path / "model")
    assert torch.equal(LanguageModel.load(tmp_path / "model")(tokens()).logits, first(tokens()).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    second.save(tmp_path / "model")
    assert torch.equal(LanguageModel.load(tmp_path / "model")(tokens()).logits, second(tokens()).logits)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def damage(folder: Path, what: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    if what == "no weights":
        (folder / "model.safetensors").unlink()
    elif what == "cut weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:100])
    elif what == "no JSON":
        (folder / "config.json").write_text("{")
    elif what == "a list":
        (folder / "config.json").write_text("[]")
    elif what == "unknown key":
        (folder / "config.json").write_text(json.dumps({**config, "widht": 1}))
    elif what == "other layers":
        (folder / "config.json").write_text(json.dumps({**config, "layers": ["attention"], "mixers": {}}))
    else:
        (folder / "config.json").write_text(json.dumps({**config, "width": 32}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no weights", "expected a model folder with model.safetensors"),
        ("cut weights", "do not fit its config.json"),
        ("no JSON", "is not JSON"),
        ("a list", "expected an object"),
        ("unknown key", "unknown key of .model. 'widht'; did you mean 'width'"),
        ("other layers", "do not fit its config.json"),
        ("other width", "do not fit its config.json"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, what: str, message: str) -> None:
    make_model().save(tmp_path / "model")
    damage(tmp_path / "model", what)
    with pytest.raises(ConfigError, match=message) as caught:
        LanguageModel.load(tmp_path / "model")
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expected a model folder with config.json, but .*nowhere"):
        LanguageModel.load(tmp_path / "nowhere")


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned"])
def test_embeddings_of_ones_own(layers: str, position: str) -> None:
    model = make_model(layers, position=position, max_positions=64 if position == "learned" else None)
    ids = tokens()
    assert torch.equal(model(inputs_embeds=model.embedding(ids)).logits, model(ids).logits)
    embeddings = torch.randn(2, 20, 16, requires_grad=True)
    logits, state = model(inputs_embeds=embeddings)
    logits.sum().backward()
    assert embeddings.grad is not None
    assert bool(embeddings.grad.abs().sum(-1).all())
    step, _ = model(inputs_embeds=embeddings[:, :1], state=state)
    assert step.shape == (2, 1, 257)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_head_of_ones_own(layers: str, tmp_path: Path) -> None:
    """Any module from [..., D] to logits can be the head: it is computed, trained, and not forgotten."""
    model = make_model(layers)
    model.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 5))
    hidden, _ = model.hidden(tokens())
    logits = model(tokens()).logits
    assert torch.equal(logits, model.head(hidden))
    assert logits.shape == (2, 20, 5)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_initialisation_follows_the_seed_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second, other = (LanguageModel(make_config(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_what_writes_into_the_residual_stream_starts_smaller_the_deeper_the_model() -> None:
    shallow, deep = (LanguageModel(make_config(f"{n}*attention", width=64), seed=0) for n in (1, 16))
    sizes = [
        m.stack()[0].mixer.get_submodule("out_proj").get_parameter("weight").detach().std() for m in (shallow, deep)
    ]
    assert float(sizes[0] / sizes[1]) == pytest.approx(4, rel=0.1)  # sqrt of 32 branches to 2


@pytest.mark.parametrize("layers", LAYERS)
def test_recomputing_blocks_changes_no_gradient(layers: str) -> None:
    def gradients(checkpointing: bool) -> dict[str, torch.Tensor]:
        model = make_model(layers, dtype=torch.float64)
        model.checkpointing = checkpointing
        logits, state = model(tokens())
        logits, _ = model(tokens(), state=state)
        logits.square().mean().backward()
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    kept, recomputed = gradients(False), gradients(True)
    assert len(kept) == len(list(make_model(layers).parameters()))
    for name, gradient in kept.items():
        close(name, recomputed[name], gradient)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("position", ["none", "sinusoidal", "learned"])
def test_padding_and_packing_change_nothing(layers: str, position: str) -> None:
    model = make_model(
        layers, dtype=torch.float64, position=position, max_positions=64 if position == "learned" else None
    )
    lengths = [5, 0, 9, 1]
    texts = [tokens(1, n) for n in lengths]
    alone = [model(text) for text in texts]
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    packed = model(torch.cat(texts, 1), cu_seqlens=bounds)
    close("packed", packed.logits, torch.cat([one.logits for one in alone], 1))
    for side in ("left", "right"):
        padded = torch.zeros(4, 9, dtype=torch.int64)
        mask = torch.zeros(4, 9, dtype=torch.bool)
        for row, text in enumerate(texts):
            place = slice(9 - lengths[row], 9) if side == "left" else slice(0, lengths[row])
            padded[row, place], mask[row, place] = text[0], True
        logits, state = model(padded, token_mask=mask)
        close(side, logits[mask], torch.cat([one.logits[0] for one in alone]))
        # The state is each row's at its last real token: what follows is the same.
        more = tokens(4, 3)
        after = model(more, state=state).logits
        packed_after = model(more, state=packed.state).logits
        for row, one in enumerate(alone):
            expected = model(more[row : row + 1], state=one.state).logits
            close(f"after {side}", after[row : row + 1], expected)
            close("after packed", packed_after[row : row + 1], expected)


@pytest.mark.parametrize("layers", LAYERS)
def test_state_bytes_are_what_the_state_takes(layers: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for position in ("none", "sinusoidal"):
            model = make_model(layers, dtype=dtype, position=position)
            for batch, time in ((1, 0), (3, 17)):
                state = model(tokens(batch, time)).state
                assert state.nbytes == model.state_bytes(time, batch)
    assert model.init_state(2).nbytes == model.state_bytes(0, 2)


@pytest.mark.parametrize("layers", LAYERS[1:3])
def test_a_recurrent_state_does_not_grow(layers: str) -> None:
    model = make_model(layers)
    assert model(tokens(1, 2)).state.nbytes == model(tokens(1, 200)).state.nbytes == model.state_bytes(10**9)


def test_the_initial_state_is_no_state() -> None:
    for layers in LAYERS:
        model = make_model(layers, dtype=torch.float64, position="sinusoidal")
        close(layers, model(tokens(), state=model.init_state(2)).logits, model(tokens()).logits)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, InputError, "exactly one of tokens and inputs_embeds"),
        ({"tokens": tokens(), "inputs_embeds": torch.zeros(2, 20, 16)}, InputError, "exactly one"),
        ({"tokens": tokens()[0]}, ShapeError, r"tokens must have shape \[B, T\], got \[20\]"),
        ({"tokens": tokens().float()}, ShapeError, "tokens must be integers, got torch.float32"),
        ({"tokens": tokens() + 250}, InputError, "tokens must be from 0 to 256, got"),
        ({"tokens": -tokens()}, InputError, "tokens must be from 0 to 256, got -"),
        ({"inputs_embeds": torch.zeros(2, 20, 15)}, ShapeError, r"inputs_embeds must have shape \[B, T, D=16\]"),
        ({"tokens": tokens(), "token_mask": torch.ones(2, 19, dtype=torch.bool)}, ShapeError, "token_mask must have"),
        ({"tokens": tokens(), "token_mask": torch.ones(2, 20)}, ShapeError, "token_mask must be bool"),
        ({"tokens": tokens(), "cu_seqlens": torch.tensor([0, 20])}, ShapeError, "packed sequences need batch 1"),
        ({"tokens": tokens(1), "cu_seqlens": torch.tensor([0, 19])}, InputError, "cu_seqlens must rise from 0 to T=20"),
        (
            {
                "tokens": tokens(1),
                "cu_seqlens": torch.tensor([0, 20]),
                "token_mask": torch.ones(1, 20, dtype=torch.bool),
            },
            InputError,
            "token_mask or cu_seqlens, not both",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make_model()(**arguments)


def test_states_of_other_models_and_batches_are_refused() -> None:
    model, deeper = make_model(), make_model("3*mamba")
    with pytest.raises(StateError, match="state must have 2 layers, got 3"):
        model(tokens(), state=deeper.init_state(2))
    with pytest.raises(StateError, match="state must have 2 rows, got 3"):
        model(tokens(), state=model.init_state(3))
    with pytest.raises(InputError, match="batch_size must not be negative"):
        model.init_state(-1)


def test_learned_positions_end() -> None:
    model = make_model(position="learned", max_positions=8)
    state = model(tokens(1, 8)).state
    with pytest.raises(InputError, match="learned positions end at 7, got position 8"):
        model(tokens(1, 1), state=state)
