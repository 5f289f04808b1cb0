"""What adapters know of their kernels is what the kernels were built with."""

from __future__ import annotations

from lavagna import native
from lavagna.ops.conv import cpu as conv
from lavagna.ops.delta import cpu as delta


def test_sizes_agree() -> None:
    module = native.module()
    assert module.short_conv_widest == conv.WIDEST
    assert (module.gated_delta_chunk, module.gated_delta_segment) == (delta.CHUNK, delta.SEGMENT)
