"""Tokens in, hidden states out: embedding, blocks, final norm. Heads are put on it by the models."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..errors import ConfigError, InputError, ShapeError, StateError
from ..files import atomic_folder
from ..mixers.base import state_dtype
from ..mixers.parts.positions import positions
from ..ops.packing import Padding, check_cu_seqlens
from ..ops.tree import named_leaves
from ..shapes import Dims
from .block import Block, make_norm
from .config import LanguageModelConfig
from .pages import gather_pages
from .state import BlockState, ModelState

__all__ = ["Backbone"]


class Backbone(nn.Module):
    """The part that all models share; a subclass puts a head on :meth:`hidden`.

    Args:
        config: the shape.
        seed: of the initialisation; None draws from torch's global generator.

    Attributes:
        checkpointing: recompute each block in backward instead of keeping its activations.

    Parameters: embedding [vocab, D] (normal, deviation .02), positions [max_positions, D] (the same),
        blocks.i.{mixer_norm, mixer, mlp_norm, mlp}, final_norm.
        The weights that write into the residual stream (``out_proj`` of each mixer and MLP) are divided by the
        square root of the number of residual branches, as GPT-2 and Mamba do.
    """

    config_class: ClassVar[type[LanguageModelConfig]] = LanguageModelConfig

    def __init__(self, config: LanguageModelConfig, *, seed: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self._gathered: tuple[int, ...] | None = None
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self.embedding = nn.Embedding(config.vocab_size, config.width)
            nn.init.normal_(self.embedding.weight, std=0.02)
            self.positions: nn.Parameter | None = None
            if config.max_positions is not None:
                self.positions = nn.Parameter(0.02 * torch.randn(config.max_positions, config.width))
            self.blocks = nn.ModuleList(Block(config, name) for name in config.layers)
            self.final_norm = make_norm(config) if config.final_norm else nn.Identity()
            self._scale_residual_branches()
            self.make_head()

    def make_head(self) -> None:
        """Create the parameters of the head, within the seeded initialisation."""

    def _scale_residual_branches(self) -> None:
        projections = [getattr(part, "out_proj", None) for block in self.stack() for part in block.parts()]
        writers = [projection.weight for projection in projections if isinstance(projection, nn.Linear)]
        with torch.no_grad():
            for weight in writers:
                weight.mul_(len(writers) ** -0.5)

    def stack(self) -> list[Block]:
        """The blocks, bottom first."""
        return cast("list[Block]", list(self.blocks))

    def gather_pages(self) -> None:
        """Have the system hold the weights in large pages (see .pages), unless it was asked for these before."""
        self._gathered = gather_pages(self, self._gathered)

    # --- state ----------------------------------------------------------------------------------------------

    def init_state(self, batch_size: int) -> ModelState:
        """The state before the first token, of `batch_size` rows; the same as ``state=None``."""
        if batch_size < 0:
            raise InputError(f"init_state: batch_size must not be negative, got {batch_size}")
        layers = tuple(
            BlockState(
                block.mixer.init_state(batch_size),
                None if block.mlp is None else block.mlp.init_state(batch_size),
            )
            for block in self.stack()
        )
        seen = None
        if self.config.position != "none":
            seen = torch.zeros(batch_size, dtype=torch.int64, device=self.embedding.weight.device)
        return ModelState(layers, seen)

    def state_bytes(self, context: int, batch_size: int = 1) -> int:
        """Bytes of the state of `batch_size` rows after `context` tokens, parameters being of their dtype."""
        dtype = self.embedding.weight.dtype
        layers = sum(part.state_bytes(context, batch_size, dtype) for block in self.stack() for part in block.parts())
        return layers + (8 * batch_size if self.config.position != "none" else 0)

    # --- forward --------------------------------------------------------------------------------------------

    def hidden(
        self,
        tokens: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        state: ModelState | None = None,
        token_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> tuple[Tensor, ModelState]:
        """What the head reads.

        Args:
            tokens: int [B, T], from 0 to vocab_size − 1; or
            inputs_embeds: [B, T, D] in place of embedded tokens. Positions are added to either.
            state: what an earlier call returned.
            token_mask: bool [B, T], True = a real token; hidden states at padding are zero.
            cu_seqlens: int [M+1], boundaries of sequences packed into batch 1.

        Returns:
            [B, T, D] after the final norm, and the state after each row's last real token.

        Raises:
            InputError: not exactly one of tokens and inputs_embeds; a token outside the vocabulary; a position
                past the end of a learned table.
            ShapeError, StateError: an argument does not fit.
        """
        name = type(self).__name__
        if (tokens is None) == (inputs_embeds is None):
            raise InputError(f"{name}: expected exactly one of tokens and inputs_embeds")
        dims = Dims(name, D=self.config.width)
        if tokens is not None:
            dims.bind("tokens", tokens, "B T")
            x = self._embed(tokens)
        else:
            assert inputs_embeds is not None
            dims.bind("inputs_embeds", inputs_embeds, "B T D")
            if not inputs_embeds.is_floating_point():
                raise ShapeError(f"{name}: inputs_embeds must have a floating dtype, got {inputs_embeds.dtype}")
            x = inputs_embeds
        padding = None
        if token_mask is not None:
            if cu_seqlens is not None:
                raise InputError(f"{name}: give token_mask or cu_seqlens, not both")
            dims.bind("token_mask", token_mask, "B T")
            if token_mask.dtype != torch.bool:
                raise ShapeError(f"{name}: token_mask must be bool with True for real tokens, got {token_mask.dtype}")
            padding = Padding.of(token_mask)
            x, cu_seqlens = padding.pack(x), padding.cu_seqlens
        elif cu_seqlens is not None:
            check_cu_seqlens(name, cu_seqlens, dims["B"], dims["T"])
        x, state = self._run(x, state, cu_seqlens)
        return (x if padding is None else padding.unpack(x)), state

    def enter(self, tokens: Tensor, seen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """What the first block reads of tokens [B, T], and how many tokens each row has seen then."""
        x = self._embed(tokens)
        return (x, None) if self.config.position == "none" else self._add_positions(x, seen, None)

    def _embed(self, tokens: Tensor) -> Tensor:
        if tokens.is_floating_point() or tokens.dtype == torch.bool:
            raise ShapeError(f"{type(self).__name__}: tokens must be integers, got {tokens.dtype}")
        # On a GPU the look-up itself asserts; asking here would wait for the device. A graph cannot ask.
        if tokens.device.type == "cpu" and tokens.numel() and not torch.compiler.is_compiling():
            low, high = int(tokens.min()), int(tokens.max())
            if low < 0 or high >= self.config.vocab_size:
                raise InputError(
                    f"{type(self).__name__}: tokens must be from 0 to {self.config.vocab_size - 1}, "
                    f"got {low if low < 0 else high}"
                )
        return self.embedding(tokens)

    def check_state(self, state: Any, rows: int) -> None:
        """Refuse what is no state of this model with so many rows.

        Raises:
            StateError: the message names what was expected and what came.
        """
        if not isinstance(state, ModelState):
            raise StateError(f"state must be a ModelState, got a {type(state).__name__}")
        if len(state.layers) != len(self.blocks):
            raise StateError(f"state must have {len(self.blocks)} layers, got {len(state.layers)}")
        held = next((leaf.shape[0] for _, leaf in named_leaves(state)), rows)
        if held != rows:
            raise StateError(f"state must have {rows} rows, got {held}")
        if (state.seen is None) != (self.config.position == "none"):
            raise StateError(
                f"state must come from a model with position {self.config.position!r}, "
                f"got one {'without' if state.seen is None else 'with'} positions"
            )

    def _run(self, x: Tensor, state: ModelState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, ModelState]:
        if state is not None:
            self.check_state(state, x.shape[0] if cu_seqlens is None else cu_seqlens.numel() - 1)
        seen = None
        if self.config.position != "none":
            x, seen = self._add_positions(x, None if state is None else state.seen, cu_seqlens)
        layers: list[BlockState] = []
        for i, block in enumerate(self.blocks):
            before = None if state is None else state.layers[i]
            if self.checkpointing and torch.is_grad_enabled():
                x, after = checkpoint(block, x, before, cu_seqlens, use_reentrant=False, preserve_rng_state=False)
            else:
                x, after = block(x, before, cu_seqlens)
            layers.append(after)
        return self.final_norm(x), ModelState(tuple(layers), seen)

    def _add_positions(self, x: Tensor, seen: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        """Add to each row the positions from what it has seen on; returns x and what it has seen then."""
        position, after = positions(x, seen, cu_seqlens)
        if self.positions is not None:
            last = int(position.max()) if position.numel() else -1
            if last >= len(self.positions):
                raise InputError(f"learned positions end at {len(self.positions) - 1}, got position {last}")
            return x + self.positions[position], after
        half = torch.arange(0, self.config.width, 2, device=x.device, dtype=state_dtype(x.dtype))
        angle = position[..., None] * torch.exp(half * (-math.log(10000.0) / self.config.width))
        table = torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)[..., : self.config.width]
        return x + table.to(x.dtype), after

    # --- files ----------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, whole or not at all."""
        with atomic_folder(folder) as temporary:
            self.write(temporary)

    def write(self, folder: Path) -> None:
        """Write the two files into an existing folder (for callers that add files of their own)."""
        from safetensors.torch import save_model

        config = {"model": type(self).__name__, **self.config.model_dump(mode="json")}
        (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        save_model(self, str(folder / "model.safetensors"))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Self:
        """Read a folder that :meth:`save` wrote.

        Raises:
            ConfigError: a file is missing, the model is of another kind, or weights and configuration disagree.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        path = Path(folder)
        for name in ("config.json", "model.safetensors"):
            if not (path / name).is_file():
                raise ConfigError(f"expected a model folder with {name}, but {str(path)!r} has none")
        try:
            values: Any = json.loads((path / "config.json").read_text())
        except json.JSONDecodeError as error:
            raise ConfigError(f"{str(path / 'config.json')!r} is not JSON: {error}") from None
        if not isinstance(values, dict):
            raise ConfigError(f"expected an object in {str(path / 'config.json')!r}, got {type(values).__name__}")
        kind = values.pop("model", None)
        if kind != cls.__name__:
            raise ConfigError(f"{str(path)!r} holds a {kind}, expected a {cls.__name__}")
        model = cls(cls.config_class.parse(values), seed=0)
        try:
            model.to(_saved_dtype(path / "model.safetensors"))
            load_model(model, str(path / "model.safetensors"))
        except (RuntimeError, SafetensorError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(f"the weights in {str(path)!r} do not fit its config.json: {reason}") from None
        return model.to(device)


def _saved_dtype(path: Path) -> torch.dtype:
    """The dtype of the saved embedding."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor("embedding.weight").dtype
