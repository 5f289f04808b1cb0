"""The loss of a batch: cross-entropy of the next token, in pieces where all logits at once would be large."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..data.packing import Batch
from ..models import LanguageModel, ModelState

__all__ = ["BatchLoss", "next_token_loss"]

LOGITS_AT_ONCE = 1 << 25  # elements; more are made and dropped piece by piece, in backward again


def next_token_loss(head: nn.Module, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Σ w · −ln softmax(head(hidden))[target], a scalar in at least float32.

    Args:
        head: [..., D] -> logits [..., vocab].
        hidden: [B, T, D].
        targets: int64 [B, T].
        weights: [B, T].
    """
    flat, wanted, weight = hidden.flatten(0, 1), targets.flatten(), weights.flatten()

    def piece(h: Tensor, t: Tensor, w: Tensor) -> Tensor:
        logits = head(h)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return (F.cross_entropy(logits, t, reduction="none") * w).sum()

    vocab = getattr(head, "out_features", 1)
    rows = max(LOGITS_AT_ONCE // vocab, 1)
    if flat.shape[0] <= rows:
        return piece(flat, wanted, weight)
    parts = zip(flat.split(rows), wanted.split(rows), weight.split(rows), strict=True)
    losses = [checkpoint(piece, *part, use_reentrant=False, preserve_rng_state=False) for part in parts]
    return torch.stack(losses).sum()


class BatchLoss(nn.Module):
    """A language model and the loss on it: one module, as data parallelism wants it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, state: ModelState | None) -> tuple[Tensor, ModelState]:
        """The summed loss of a batch, and the state after it."""
        hidden, state = self.model.hidden(
            batch.tokens, state=state, token_mask=batch.token_mask, cu_seqlens=batch.cu_seqlens
        )
        return next_token_loss(self.model.head, hidden, batch.targets, batch.weights), state
