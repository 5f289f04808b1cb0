"""What a model costs: counted on the model itself, without memory for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import NamedTuple, cast

import torch
from torch import nn

from ..errors import ConfigError, InputError
from ..models import LanguageModel, LanguageModelConfig
from ..models.block import Block
from .formulas import formulas_of
from .measure import Branch, Cost, Head
from .reach import reach

__all__ = ["At", "Layer", "LayerAt", "Plan", "plan"]


class LayerAt(NamedTuple):
    """A kind of layer at one context.

    Fields:
        steps: tensor operations of one mixer's forward pass over the context that wait for one another.
        path: the longest path between two tokens (see Layer.why); None if there is none.
    """

    steps: int
    path: int | None


class Layer(NamedTuple):
    """A kind of block.

    Fields:
        mixer, mlp: names; mlp None where there is none.
        blocks: how many there are of this kind.
        parameters: of one.
        why: a line about steps and paths.
        formulas: closed forms that hold for these blocks, written out.
        at: context -> steps and path.
    """

    mixer: str
    mlp: str | None
    blocks: int
    parameters: int
    why: str
    formulas: tuple[str, ...]
    at: dict[int, LayerAt]


class At(NamedTuple):
    """The costs at one context T, for a batch of B rows.

    Fields:
        forward, training: FLOPs of the matrix products of a pass over [B, T], by part: forward; forward and backward.
        checkpointed: what checkpointing adds to `training`: one forward pass of every block (torch stops short of its
            last product, which nothing in backward needs).
        generation: FLOPs of one token of each row behind T others, by part; None where a layer carries no state.
        state: bytes of the state of B rows behind T tokens.
        cache: bytes of it that have come with the tokens.
        activations: bytes that a training step holds at the end of its forward pass: what autograd saved, and the
            state; parameters are not among them.
        peak: the most bytes that the step takes beside parameters, their gradients and the optimiser's, temporary
            tensors included.
        checkpointed_peak: the same with checkpointing.
    """

    forward: dict[str, int]
    training: dict[str, int]
    checkpointed: int
    generation: dict[str, int] | None
    state: int
    cache: int
    activations: int
    peak: int
    checkpointed_peak: int


class Plan(NamedTuple):
    """What a model costs.

    Fields:
        dtype: of parameters and activations.
        batch_size: B.
        parameters: by part.
        weights, gradients, optimizer: bytes; the optimiser is AdamW.
        layers: kinds of blocks, in order of appearance.
        at: context -> costs.
    """

    dtype: torch.dtype
    batch_size: int
    parameters: dict[str, int]
    weights: int
    gradients: int
    optimizer: int
    layers: tuple[Layer, ...]
    at: dict[int, At]

    def training_bytes(self, context: int, *, checkpointing: bool = False) -> int:
        """Weights, gradients, optimiser and activations together, at their peak."""
        at = self.at[context]
        return self.weights + self.gradients + self.optimizer + (at.checkpointed_peak if checkpointing else at.peak)


def plan(
    config: LanguageModelConfig,
    contexts: Sequence[int],
    *,
    batch_size: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Plan:
    """Tell what a model costs before it is trained.

    Parameters and states are the model's own, built on the meta device. Each kind of layer is run there, forward and
    backward, at a few short lengths, and the counts are continued exactly to the contexts asked for (see
    lavagna.cost.extrapolate). A multiply-add is two operations. What is counted is the portable implementation with
    fused attention; every pair of tokens counts, the hidden half of a causal one too, as in torch's own counter.

    Args:
        config: the model.
        contexts: numbers of tokens, each at least 1.
        batch_size: B, at least 1.
        dtype: of parameters and activations, floating.

    Raises:
        InputError: no context, or a number below 1.
        ConfigError: the model's positions end before a context does.
    """
    if not contexts:
        raise InputError("expected at least one context, got none")
    for name, number in (("batch size", batch_size), *(("context", context) for context in contexts)):
        if number < 1:
            raise InputError(f"expected a {name} of at least 1, got {number:,}")
    limit = config.max_positions
    if limit is not None and max(contexts) > limit:
        raise ConfigError(f"learned positions end at {limit:,} tokens, got a context of {max(contexts):,}")
    with torch.device("meta"):
        model = LanguageModel(config).to(dtype)
    tensors = list(model.parameters())
    weights = sum(p.numel() * p.element_size() for p in tensors)
    kinds = [_Kind(model, mixer, count, batch_size) for mixer, count in Counter(config.layers).items()]
    head = Head(model.final_norm, cast("nn.Linear", model.head))
    return Plan(
        dtype=dtype,
        batch_size=batch_size,
        parameters=_parameters(model),
        weights=weights,
        gradients=weights,
        optimizer=2 * weights + 4 * len(tensors),  # two moments; the number of the step, for each tensor
        layers=tuple(kind.layer(contexts) for kind in kinds),
        at={context: _at(model, kinds, head, batch_size, context) for context in contexts},
    )


class _Kind:
    """All blocks with one mixer."""

    def __init__(self, model: LanguageModel, mixer: str, count: int, batch: int) -> None:
        self.mixer, self.mlp, self.count, self.batch = mixer, model.config.mlp_of(mixer), count, batch
        self.block = model.stack()[model.config.layers.index(mixer)]
        self.reach = reach(self.block.mixer)
        self.branches = self._branches(self.block)
        # In half precision a step may make a product twice, to be faster.
        self.wide = self._branches(deepcopy(self.block).float())

    def _branches(self, block: Block) -> dict[str, Branch]:
        found = {self.mixer: Branch(block, block.mixer_norm, block.mixer, self.batch)}
        if self.mlp is not None and block.mlp is not None and block.mlp_norm is not None:
            found[self.mlp] = Branch(block, block.mlp_norm, block.mlp, self.batch)
        return found

    def train(self, tokens: int) -> dict[str, Cost]:
        """The cost of one block, by branch."""
        start = self.reach.full or 0
        return {name: branch.train(tokens, start) for name, branch in self.branches.items()}

    def step(self, context: int) -> dict[str, int]:
        """FLOPs of one token of each row behind a context, in one block, by branch."""
        seen = context if self.reach.full is None else min(context, self.reach.full)
        return {name: branch.step(seen) for name, branch in self.wide.items()}

    def layer(self, contexts: Sequence[int]) -> Layer:
        parameters = list(self.block.parameters())
        return Layer(
            mixer=self.mixer,
            mlp=self.mlp,
            blocks=self.count,
            parameters=sum(p.numel() for p in parameters),
            why=self.reach.why,
            formulas=formulas_of(self.block, self.count, self.batch, parameters[0].element_size()),
            at={T: LayerAt(self.train(T)[self.mixer].steps, self.reach.path(T)) for T in contexts},
        )


def _at(model: LanguageModel, kinds: Sequence[_Kind], head: Head, rows: int, context: int) -> At:
    costs = [(kind.count, kind.train(context)) for kind in kinds]
    last = head.train(rows * context)
    forward = _together((count, {name: cost.forward for name, cost in branches.items()}) for count, branches in costs)
    training = _together((count, {name: cost.training for name, cost in branches.items()}) for count, branches in costs)
    generation = None
    if all(kind.reach.generates for kind in kinds):
        generation = {**_together((kind.count, kind.step(context)) for kind in kinds), "head": head.step(rows)}

    # Looking up a token, or its learned position, keeps the number.
    numbers = 8 * rows * context * (2 if model.positions is not None else 1)
    stream = rows * context * model.config.width * model.embedding.weight.element_size()
    state = model.state_bytes(context, rows)
    held = sum(count * sum(cost.held for cost in branches.values()) for count, branches in costs)
    above, again = last.most, 0  # what the part at work takes: beside all that is held; beside the blocks' inputs
    for _, branches in costs:
        kept = 0
        for cost in branches.values():
            above = max(above, stream + cost.most - cost.held)
            again = max(again, stream + cost.most + kept)
            kept += cost.held
    return At(
        forward={**forward, "head": last.forward},
        training={**training, "head": last.training},
        checkpointed=sum(forward.values()),
        generation=generation,
        state=state,
        cache=state - model.state_bytes(0, rows),
        activations=numbers + held + last.held,
        peak=numbers + held + above,
        # The state is there until the loss is known; then the blocks run again, the last one first.
        checkpointed_peak=numbers + len(model.blocks) * stream + max(state + last.most, again),
    )


def _together(blocks: Iterable[tuple[int, Mapping[str, int]]]) -> dict[str, int]:
    """FLOPs by part in all blocks, from how many there are of each kind and what one takes."""
    parts: Counter[str] = Counter()
    for count, flops in blocks:
        parts.update({name: count * value for name, value in flops.items()})
    return dict(parts)


def _parameters(model: LanguageModel) -> dict[str, int]:
    """Parameters by part; a tied head has none of its own."""
    parts: Counter[str] = Counter(embedding=model.embedding.weight.numel())
    if model.positions is not None:
        parts["positions"] = model.positions.numel()
    for name, block in zip(model.config.layers, model.stack(), strict=True):
        parts[name] += _size(block.mixer)
        mlp = model.config.mlp_of(name)
        if mlp is not None:
            parts[mlp] += _size(block.mlp)
    parts["norms"] = _size(model.final_norm) + sum(_size(b.mixer_norm) + _size(b.mlp_norm) for b in model.stack())
    parts["head"] = 0 if model.config.tied else _size(model.head)
    return dict(parts)


def _size(module: nn.Module | None) -> int:
    return 0 if module is None else sum(p.numel() for p in module.parameters())
