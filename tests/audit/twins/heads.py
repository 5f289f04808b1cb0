"""Heads split, joined or repeated in the wrong order."""

from __future__ import annotations

from torch import Tensor

from .decoder import Decoder, GroupedDecoder
from .twin import Twin


class SplitWithoutTranspose(Decoder):
    def split(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], -1, x.shape[1], self.head_dim)

    def join(self, o: Tensor) -> Tensor:
        return o.reshape(o.shape[0], o.shape[2], -1)


class JoinedWithoutTranspose(Decoder):
    def join(self, o: Tensor) -> Tensor:
        return o.reshape(o.shape[0], o.shape[2], -1)


class GroupsInOtherOrder(GroupedDecoder):
    def repeat(self, x: Tensor) -> Tensor:
        return x.repeat(1, self.heads // self.groups, 1, 1)


TWINS = (
    Twin(SplitWithoutTranspose, "heads"),
    Twin(JoinedWithoutTranspose, "heads"),
    Twin(GroupsInOtherOrder, "heads"),
)
