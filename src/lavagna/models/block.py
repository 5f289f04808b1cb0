"""A block: a mixer and an MLP, each in a residual branch with its norm."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..mixers.base import Mixer
from ..mixers.parts.norms import RMSNorm
from ..mixers.registry import MLPS, build
from .config import LanguageModelConfig
from .state import BlockState

__all__ = ["Block", "make_norm"]


def make_norm(config: LanguageModelConfig) -> nn.Module:
    """The norm of the residual stream that the configuration names."""
    kinds = {"rmsnorm": RMSNorm, "layernorm": nn.LayerNorm}
    return kinds[config.norm](config.width, eps=config.norm_eps)


class Block(nn.Module):
    """x + mixer(norm x), then x + mlp(norm x); with norm_position "post": norm(x + f(x)).

    Parameters: mixer_norm, mixer, mlp_norm, mlp (the last two absent in a block without MLP).
    """

    def __init__(self, config: LanguageModelConfig, mixer: str) -> None:
        super().__init__()
        self.post = config.norm_position == "post"
        self.mixer_norm = make_norm(config)
        self.mixer = build(mixer, config.width, config.mixers.get(mixer))
        mlp = config.mlp_of(mixer)
        self.mlp_norm = None if mlp is None else make_norm(config)
        self.mlp = None if mlp is None else build(mlp, config.width, config.mlps.get(mlp), table=MLPS, kind="mlp")

    def parts(self) -> list[Mixer]:
        """The mixer, and the MLP if there is one."""
        return [self.mixer] if self.mlp is None else [self.mixer, self.mlp]

    def forward(self, x: Tensor, state: BlockState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, BlockState]:
        """x [B, T, D] and the block's state -> the same of the next block."""
        mixer_state, mlp_state = (None, None) if state is None else state
        x, mixer_state = self.branch(self.mixer_norm, self.mixer, x, mixer_state, cu_seqlens)
        if self.mlp is not None and self.mlp_norm is not None:
            x, mlp_state = self.branch(self.mlp_norm, self.mlp, x, mlp_state, cu_seqlens)
        return x, BlockState(mixer_state, mlp_state)

    def branch(
        self, norm: nn.Module, layer: nn.Module, x: Tensor, state: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, Any]:
        """One residual branch: x [B, T, D] and the layer's state -> the same behind it."""
        y, state = layer(x if self.post else norm(x), state, cu_seqlens=cu_seqlens)
        return (norm(x + y) if self.post else x + y), state
