"""The measure of memory sees what lives, and what lives no more."""

from __future__ import annotations

import torch

from .memory import Peak

MIB = 1 << 20


def test_the_most_at_once() -> None:
    before = torch.zeros(MIB, dtype=torch.uint8)
    with Peak() as peak:
        assert peak.bytes == 0
        for _ in range(3):
            x = torch.zeros(MIB, dtype=torch.uint8)  # the last one lives until this one is made
        assert peak.bytes == 2 * MIB
        del x
        y = torch.zeros(MIB, dtype=torch.uint8)
        views = [y[10:], y.view(2, -1), before[10:], before.add_(1)]
        assert peak.bytes == 2 * MIB
        more = [torch.zeros(MIB, dtype=torch.uint8) for _ in range(3)]
        assert peak.bytes == 4 * MIB
        del y, views, more
    assert peak.bytes == 4 * MIB


def test_what_a_view_keeps_alive_counts() -> None:
    with Peak() as peak:
        corners = [torch.zeros(MIB, dtype=torch.uint8)[:1] for _ in range(5)]
    assert peak.bytes == 5 * MIB
    assert len(corners) == 5
