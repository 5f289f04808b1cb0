"""A decoder: tokens in, for each position the logits of the token that comes next."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from ..errors import ConfigError, InputError, unknown_name
from .arrays import Array, Mask, Tokens
from .attention import causal_mask, visible
from .block import BlockRun, Norm, block, block_backward
from .cache import LayerCache
from .layernorm import LayerNormRun, layernorm, layernorm_backward
from .linear import linear, linear_backward
from .multi_head import Heads
from .positions import POSITIONS, Position, learned, learned_backward, sinusoidal

__all__ = ["Config", "Decoder", "Run"]


@dataclass(frozen=True)
class Config:
    """The shape of a decoder.

    Args:
        vocab: different tokens.
        d: width; heads: h, of d/h channels each; layers: blocks; d_ff: width of the feed-forward networks.
        t_max: rows of the table of learned positions.
        norm: "pre" or "post".
        position: one of lavagna.scratch.positions.
        scale: of the scores; None for 1/√d_k.
        groups: heads of keys and values; None for as many as heads.
    """

    vocab: int
    d: int = 32
    heads: int = 4
    layers: int = 2
    d_ff: int = 128
    t_max: int = 64
    norm: Norm = "pre"
    position: Position = "learned"
    scale: float | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab", "d", "heads", "layers", "d_ff", "t_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"Config: {name} must be at least 1, got {getattr(self, name)}")
        if self.d % self.heads:
            raise ConfigError(f"Config: d must be a multiple of heads, got d {self.d} and {self.heads} heads")
        if self.groups is not None and (self.groups < 1 or self.heads % self.groups):
            raise ConfigError(f"Config: groups must divide heads, got {self.groups} groups and {self.heads} heads")
        if self.norm not in ("pre", "post"):
            raise ConfigError(f"Config: {unknown_name('norm', self.norm, ('pre', 'post'))}")
        if self.position not in POSITIONS:
            raise ConfigError(f"Config: {unknown_name('position', self.position, POSITIONS)}")

    @property
    def d_k(self) -> int:
        """Channels of a head."""
        return self.d // self.heads

    @property
    def attention(self) -> Heads:
        """What multi_head has to know."""
        return Heads(self.heads, self.groups or self.heads, self.scale, self.position == "rotary")


class Run(NamedTuple):
    """What a forward pass leaves for the backward pass, and for looking at."""

    tokens: Tokens  # (B, T)
    t: Tokens  # (T,), positions
    states: tuple[Array, ...]  # (B, T, d) each: before the first block, after each one
    blocks: tuple[BlockRun, ...]
    norm: LayerNormRun
    final: Array  # (B, T, d), what the logits are read from
    plain: bool  # neither caches nor an intervention took part: the backward below is its derivative

    @property
    def weights(self) -> tuple[Array, ...]:
        """A (B, h, T, S) of each layer."""
        return tuple(b.attention.A for b in self.blocks)

    @property
    def relus(self) -> Mask:
        """Which ReLUs let their input through, all of them in one row."""
        return np.concatenate([b.feed_forward.a.reshape(-1) > 0 for b in self.blocks])


class Decoder:
    """Embedding + positions, causal blocks, a last LayerNorm, logits = x Wout + bout.

    `params` maps names to arrays: E (vocab, d), P (t_max, d) if learned, gamma, beta, Wout, bout, and for each layer l
    "l.Wq" and so on, see `block`.

    Initial values, in the order in which they are drawn from normal distributions: E and P with deviation .1; for each
    layer Wq, Wk, Wv, Wo and W1 with 1/√d, W2 with 1/√d_ff; Wout with 1/√d. Biases are 0, gains 1.

    Args:
        config: the shape.
        rng: where the draws come from.
    """

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.config = config
        c = config
        width = c.attention.groups * c.d_k

        def matrix(rows: int, columns: int) -> Array:
            return rng.normal(size=(rows, columns)) / math.sqrt(rows)

        self.params: dict[str, Array] = {"E": 0.1 * rng.normal(size=(c.vocab, c.d))}
        if c.position == "learned":
            self.params["P"] = 0.1 * rng.normal(size=(c.t_max, c.d))
        for layer in range(c.layers):
            p = {
                "Wq": matrix(c.d, c.d),
                "Wk": matrix(c.d, width),
                "Wv": matrix(c.d, width),
                "Wo": matrix(c.d, c.d),
                "W1": matrix(c.d, c.d_ff),
                "W2": matrix(c.d_ff, c.d),
            }
            biases = {"bq": c.d, "bk": width, "bv": width, "bo": c.d, "b1": c.d_ff, "b2": c.d}
            p |= {name: np.zeros(size) for name, size in biases.items()}
            p |= {"gamma1": np.ones(c.d), "beta1": np.zeros(c.d), "gamma2": np.ones(c.d), "beta2": np.zeros(c.d)}
            self.params |= {f"{layer}.{name}": theta for name, theta in p.items()}
        self.params |= {"gamma": np.ones(c.d), "beta": np.zeros(c.d)}
        self.params |= {"Wout": matrix(c.d, c.vocab), "bout": np.zeros(c.vocab)}

    @property
    def size(self) -> int:
        """How many numbers are learned."""
        return sum(theta.size for theta in self.params.values())

    def layer(self, number: int) -> dict[str, Array]:
        """The parameters of one block, under the names that `block` uses."""
        prefix = f"{number}."
        return {name[len(prefix) :]: theta for name, theta in self.params.items() if name.startswith(prefix)}

    def caches(self, B: int, capacity: int) -> list[LayerCache]:
        """An empty cache for each layer."""
        c = self.config
        return [LayerCache(B, c.attention.groups, capacity, c.d_k) for _ in range(c.layers)]

    def forward(
        self,
        tokens: Tokens,
        *,
        padding: Mask | None = None,
        caches: list[LayerCache] | None = None,
        intervene: Callable[[int, Array, Array], tuple[Array, Array]] | None = None,
    ) -> tuple[Array, Run]:
        """The logits of each next token.

        Args:
            tokens: (B, T) integers below vocab, T > 0.
            padding: (B, S), True at real tokens; S counts the tokens of the caches too.
            caches: what earlier calls read, from `caches`; they take these tokens. No backward then.
            intervene: layer, A (B, h, T, S) and V (B, h, S, d_k) -> what to use in their place. No backward then.

        Returns:
            logits (B, T, vocab), and what the backward needs.

        Raises:
            InputError: there is no token, one is none of the vocabulary, or a learned position lies beyond the table.
        """
        c, params = self.config, self.params
        if tokens.ndim != 2 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
            raise InputError(f"Decoder: tokens must be integers (B, T), T > 0, got {tokens.dtype} {tokens.shape}")
        if not 0 <= tokens.min() <= tokens.max() < c.vocab:
            raise InputError(f"Decoder: tokens must be 0 to {c.vocab - 1}, got {tokens.min()} to {tokens.max()}")
        T = tokens.shape[1]
        seen = caches[0].length if caches else 0
        t = np.arange(seen, seen + T)
        x = params["E"][tokens]
        if c.position == "learned":
            x += learned(params["P"], t)
        elif c.position == "sinusoidal":
            x += sinusoidal(t, c.d)
        mask = visible(causal_mask(T, seen + T), padding)
        states, blocks = [x], []
        for layer in range(c.layers):
            x, run = block(
                x,
                self.layer(layer),
                c.norm,
                c.attention,
                mask,
                t=t,
                cache=caches[layer] if caches else None,
                intervene=partial(intervene, layer) if intervene else None,
            )
            states.append(x)
            blocks.append(run)
        final, norm = layernorm(x, params["gamma"], params["beta"])
        logits = linear(final, params["Wout"], params["bout"])
        return logits, Run(tokens, t, tuple(states), tuple(blocks), norm, final, caches is None and intervene is None)

    def backward(self, dlogits: Array, run: Run) -> dict[str, Array]:
        """The gradient of every parameter, from that of the logits: `forward` from its last line to its first.

        Raises:
            InputError: the run had caches or an intervention.
        """
        if not run.plain:
            raise InputError("Decoder.backward: expected a run without caches and intervention, got one with them")
        c, params = self.config, self.params
        dfinal, dWout, dbout = linear_backward(dlogits, run.final, params["Wout"])
        dx, dgamma, dbeta = layernorm_backward(dfinal, params["gamma"], run.norm)
        gradients = {"gamma": dgamma, "beta": dbeta, "Wout": dWout, "bout": dbout}
        for layer in reversed(range(c.layers)):
            dx, found = block_backward(dx, self.layer(layer), c.norm, c.attention, run.blocks[layer])
            gradients |= {f"{layer}.{name}": gradient for name, gradient in found.items()}
        if c.position == "learned":
            gradients["P"] = learned_backward(dx, params["P"], run.t)
        gradients["E"] = np.zeros_like(params["E"])
        np.add.at(gradients["E"], run.tokens, dx)  # a token that occurs twice hears twice: += would keep one
        return gradients
