"""The state of a model: everything it remembers, as a value."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lavagna.errors import StateError
from lavagna.models import ModelState
from lavagna.ops.tree import leaves, named_leaves
from tests.support.budget import close
from tests.support.models import LAYERS, make_model

ALL = pytest.mark.parametrize("layers", LAYERS)


def tokens(batch: int, time: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 257, (batch, time), generator=torch.Generator().manual_seed(seed))


@ALL
def test_interleaved_sequences_do_not_disturb_each_other(layers: str) -> None:
    """No state is kept outside of the state object (fault 15)."""
    model = make_model(layers, dtype=torch.float64)
    a, b = tokens(1, 12), tokens(1, 12, seed=2)
    alone = [model(text).logits for text in (a, b)]
    states: list[ModelState | None] = [None, None]
    for t in range(12):
        for i, text in enumerate((a, b)):
            logits, states[i] = model(text[:, t : t + 1], state=states[i])
            close(f"sequence {i}", logits, alone[i][:, t : t + 1])


@ALL
def test_a_state_can_be_gone_on_from_twice(layers: str) -> None:
    """Reading on changes no state that was there before."""
    model = make_model(layers, dtype=torch.float64)
    state = model(tokens(2, 9)).state
    before = [leaf.clone() for leaf in leaves(state)]
    first = model(tokens(2, 3, seed=2), state=state).logits
    model(tokens(2, 5, seed=3), state=state)
    assert all(torch.equal(a, b) for a, b in zip(leaves(state), before, strict=True))
    assert torch.equal(model(tokens(2, 3, seed=2), state=state).logits, first)


@ALL
def test_reordering_reorders_every_layer(layers: str) -> None:
    """As beam search does: rows repeat, are dropped, change places (fault 16)."""
    model = make_model(layers, dtype=torch.float64, position="sinusoidal")
    text = tokens(3, 7)
    mask = torch.arange(7) < torch.tensor([[7], [4], [6]])  # rows of different lengths
    state = model(text, token_mask=mask).state
    index = torch.tensor([2, 2, 0, 1])
    expected = model(text[index], token_mask=mask[index]).state
    reordered = state.reorder(index)
    assert reordered.rows == 4
    more = tokens(4, 3, seed=2)
    close("reordered", model(more, state=reordered).logits, model(more, state=expected).logits)
    close("forked", model(tokens(6, 3), state=state.fork(2)).logits[::2], model(tokens(6, 3)[::2], state=state).logits)


@ALL
def test_reset_rows_start_anew_and_others_go_on(layers: str) -> None:
    model = make_model(layers, dtype=torch.float64, position="sinusoidal")
    state = model(tokens(3, 7)).state
    logits = model(tokens(3, 4, seed=2), state=state.reset(torch.tensor([False, True, False]))).logits
    close("anew", logits[1:2], model(tokens(3, 4, seed=2)[1:2]).logits)
    close("on", logits[[0, 2]], model(tokens(3, 4, seed=2), state=state).logits[[0, 2]])


@ALL
def test_clones_share_nothing_and_detached_states_have_no_graph(layers: str) -> None:
    model = make_model(layers)
    state = model(tokens(2, 5)).state
    clone = state.clone()
    memory = {leaf.untyped_storage().data_ptr() for leaf in leaves(state) if leaf.numel()}
    assert memory.isdisjoint(leaf.untyped_storage().data_ptr() for leaf in leaves(clone) if leaf.numel())
    assert any(leaf.requires_grad for leaf in leaves(state))
    assert not any(leaf.requires_grad for leaf in leaves(state.detach()))
    assert all(torch.equal(a, b) for a, b in zip(leaves(clone), leaves(state), strict=True))


@pytest.mark.parametrize("layers", LAYERS[1:3])
def test_a_state_goes_to_another_device(layers: str) -> None:
    state = make_model(layers)(tokens(2, 5)).state
    assert {leaf.device.type for leaf in leaves(state.to("meta"))} == {"meta"}
    assert {leaf.device.type for leaf in leaves(state)} == {"cpu"}


@pytest.mark.parametrize("layers", [*LAYERS, "s4d+rwkv6"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_saved_state_goes_on_exactly(layers: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make_model(layers, dtype=dtype, position="sinusoidal")
    logits, state = model(tokens(2, 9))
    state.save(tmp_path / "state", model, logits=logits[:, -1])
    loaded, expected = ModelState.load_with_logits(tmp_path / "state", model)
    assert expected is not None
    assert torch.equal(expected, logits[:, -1])
    assert loaded.nbytes == state.nbytes
    assert [(n, leaf.dtype) for n, leaf in named_leaves(loaded)] == [(n, leaf.dtype) for n, leaf in named_leaves(state)]
    assert torch.equal(model(tokens(2, 3), state=loaded).logits, model(tokens(2, 3), state=state).logits)
    assert ModelState.load(tmp_path / "state", model).rows == 2


@ALL
def test_recurrent_states_are_never_half_precision(layers: str) -> None:
    """Whatever the model's dtype (fault 19); only attention's cache has it."""
    state = make_model(layers, dtype=torch.bfloat16)(tokens(1, 5)).state
    for name, leaf in named_leaves(state):
        cache = name.rpartition(".")[2] in ("keys", "values")
        assert leaf.dtype == (torch.bfloat16 if cache else torch.int64 if name.endswith("seen") else torch.float32)


def test_a_state_of_another_configuration_is_refused_by_name(tmp_path: Path) -> None:
    model = make_model()
    model.init_state(1).save(tmp_path / "state", model)
    other = make_model("2*mamba", width=32)
    with pytest.raises(StateError, match=r"saved by another configuration: .*layers .*; .*width 16 \(here 32\)"):
        ModelState.load(tmp_path / "state", other)


def test_files_that_are_no_states_are_refused(tmp_path: Path) -> None:
    model = make_model()
    with pytest.raises(StateError, match=r"nothing' does not exist"):
        ModelState.load(tmp_path / "nothing", model)
    (tmp_path / "text").write_text("not a state")
    with pytest.raises(StateError, match=r"text' is no state file"):
        ModelState.load(tmp_path / "text", model)
    model.save(tmp_path / "model")
    with pytest.raises(StateError, match=r"model.safetensors' is no state file"):
        ModelState.load(tmp_path / "model" / "model.safetensors", model)


def test_rows_that_are_not_there_are_refused() -> None:
    state = make_model().init_state(2)
    for index in ([2], [-1]):
        with pytest.raises(StateError, match="rows must be from 0 to 1, got"):
            state.reorder(torch.tensor(index))
    with pytest.raises(StateError, match="n must be at least 1, got 0"):
        state.fork(0)
