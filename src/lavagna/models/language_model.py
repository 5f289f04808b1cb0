"""The models: a backbone with a head for the next token, or for the class of a whole sequence."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..mixers.parts.linear import Linear
from .backbone import Backbone
from .config import ClassifierConfig, LanguageModelConfig
from .state import ModelState

__all__ = ["Classifier", "LanguageModel", "Output"]


class Output(NamedTuple):
    """Logits, and the state after the last token of each row."""

    logits: Tensor
    state: ModelState


class LanguageModel(Backbone):
    """Predicts the next token: logits_t = head(hidden_t).

    Parameters, beside the backbone's: head.weight [vocab, D] (the embedding itself if tied). Any module that maps
    [..., D] to logits may replace ``model.head``.

    >>> model = LanguageModel(LanguageModelConfig(vocab_size=257, width=64, layers="2*gated_deltanet"), seed=0)
    >>> logits, state = model(tokens)
    >>> logits, state = model(next_token, state=state)
    """

    config_class: ClassVar[type[LanguageModelConfig]] = LanguageModelConfig

    def make_head(self) -> None:
        self.head: nn.Module = Linear(self.config.width, self.config.vocab_size, bias=False)
        if self.config.tied:
            self.head.weight = self.embedding.weight
        else:
            nn.init.normal_(self.head.weight, std=0.02)

    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        state: ModelState | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Output:
        """Logits [B, T, vocab] for the token after each one, and the state; arguments as in :meth:`hidden`."""
        hidden, state = self.hidden(
            tokens, inputs_embeds=inputs_embeds, state=state, token_mask=token_mask, cu_seqlens=cu_seqlens
        )
        return Output(self.head(hidden), state)


class Classifier(Backbone):
    """Names the class of a whole sequence: logits = head(pooled hidden states).

    Parameters, beside the backbone's: head.weight [classes, D], head.bias [classes].
    """

    config: ClassifierConfig
    config_class: ClassVar[type[LanguageModelConfig]] = ClassifierConfig

    def make_head(self) -> None:
        self.head: nn.Module = Linear(self.config.width, self.config.classes)

    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, classes] (or [M, classes] of packed sequences); arguments as in :meth:`hidden`.

        A row without real tokens has a pooled hidden state of zeros.
        """
        hidden, _ = self.hidden(tokens, inputs_embeds=inputs_embeds, token_mask=token_mask, cu_seqlens=cu_seqlens)
        if cu_seqlens is not None:
            lengths = cu_seqlens.diff().to(torch.int64)
            row = torch.arange(len(lengths), device=hidden.device).repeat_interleave(lengths)
            is_last = torch.arange(hidden.shape[1], device=hidden.device) == (cu_seqlens[1:] - 1).repeat_interleave(
                lengths
            )
            flat = hidden[0]
        else:
            mask = (
                torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
                if token_mask is None
                else token_mask
            )
            lengths = mask.sum(1)
            row = torch.arange(len(lengths), device=hidden.device).repeat_interleave(lengths)
            is_last = (mask.cumsum(1) == lengths[:, None])[mask]
            flat = hidden[mask]
        if self.config.pooling == "last":
            weights = is_last.to(flat.dtype)
        else:
            weights = 1 / lengths.to(flat.dtype)[row]
        pooled = flat.new_zeros(len(lengths), flat.shape[-1]).index_add(0, row, flat * weights[:, None])
        return self.head(pooled)
