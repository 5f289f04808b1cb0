"""What an unknown module or function takes is found out by its signature and by trying."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from lavagna.audit.adapters import adapt
from lavagna.audit.adapters.plain import PlainAdapter

MASK = torch.tensor([[True, True, False], [True, False, False]])


class Masked(nn.Module):
    """Sums what is real; the mask is told in one of the ways that people have."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor | None = None
        self.scale = nn.Parameter(torch.ones(2, 4))

    def sum(self, x: Tensor, real: Tensor | None) -> Tensor:
        return (x if real is None else x * real[..., None]).cumsum(1)


class TrueIsReal(Masked):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.seen = mask
        return self.sum(x, mask)


class TrueIsPadding(Masked):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        self.seen = mask
        return self.sum(x, None if mask is None else ~mask)


class OneIsReal(Masked):
    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.seen = attention_mask
        if attention_mask is not None and attention_mask.dtype == torch.bool:
            raise TypeError("expected numbers")
        return self.sum(x, attention_mask)


class IgnoredPadding(Masked):
    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        self.seen = key_padding_mask
        return self.sum(x, None)


class Lengths(Masked):
    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        self.seen = lengths
        return self.sum(x, None if lengths is None else torch.arange(x.shape[1]) < lengths[:, None])


class CausalMask(Masked):
    """An argument of this name that is no mask of tokens."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.sum(x, None) if mask is None else mask.to(x.dtype) @ x


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (TrueIsReal(), MASK),
        (TrueIsPadding(), ~MASK),
        (OneIsReal(), MASK.long()),
        (IgnoredPadding(), ~MASK),
        (Lengths(), torch.tensor([2, 1])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_mask_is_told_as_the_model_wants_it(model: Masked, told: Tensor) -> None:
    adapter = adapt(model, width=4)
    assert adapter.takes_mask
    adapter.call(torch.randn(2, 3, 4), mask=MASK)
    assert model.seen is not None
    assert torch.equal(model.seen, told)
    assert model.seen.dtype == told.dtype


def test_what_is_no_padding_mask_is_not_taken_for_one() -> None:
    assert not adapt(CausalMask(), width=4).takes_mask


def test_the_mask_of_padding_is_found_beside_another_one() -> None:
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1, enable_nested_tensor=False
    )
    adapter = adapt(encoder.eval())
    assert isinstance(adapter, PlainAdapter)
    assert (adapter.width, adapter.mask_name) == (8, "src_key_padding_mask")
    x = torch.randn(2, 3, 8)
    padded, _ = adapter.call(x, mask=MASK)
    torch.testing.assert_close(padded[:1, :2], adapter.call(x[:1, :2])[0])


def test_lengths_know_padding_on_the_right_only() -> None:
    assert not adapt(Lengths(), width=4).left_padding
    assert adapt(TrueIsReal(), width=4).left_padding


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)


def test_the_input_is_found_by_trying() -> None:
    assert adapt(nn.GRU(5, 3, batch_first=True)).width == 5
    tokens = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 4))
    assert (adapt(tokens).vocabulary, adapt(tokens).width) == (11, None)
    assert adapt(nn.Linear(6, 2)).width == 6
    assert adapt(Convolution()).width == 5


class Logits(NamedTuple):
    logits: Tensor
    state: Tensor


@pytest.mark.parametrize("kind", ["tuple", "named", "dict"])
def test_outputs_and_states_are_found(kind: str) -> None:
    def model(x: Tensor, state: Any = None, return_state: bool = False) -> Any:
        total = x.cumsum(1) + (0 if state is None else state)
        made = total[:, -1:] if return_state else None
        if kind == "dict":
            return {"logits": total, "state": made}
        return Logits(total, made) if kind == "named" else (total, made)

    adapter = adapt(model, width=2)
    assert adapter.takes_state
    x = torch.randn(2, 4, 2)
    _, state = adapter.call(x[:, :3], keep=True)
    output, _ = adapter.call(x[:, 3:], state, keep=True)
    torch.testing.assert_close(output, x.sum(1, keepdim=True))
    assert adapter.call(x)[1] is None


def test_rows_of_a_state_are_selected_wherever_they_are() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2, batch_first=True)
    adapter = adapt(lstm)
    assert isinstance(adapter, PlainAdapter)
    x = torch.randn(2, 5, 3)
    _, (h, c) = adapter.call(x, keep=True)
    one, two = adapter.select((h, c), torch.tensor([1, 1, 0]))
    assert torch.equal(one, h[:, [1, 1, 0]])
    assert torch.equal(two, c[:, [1, 1, 0]])
