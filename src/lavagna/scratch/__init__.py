"""Attention, a decoder, its training and the memories that replace attention, from scratch: NumPy and nothing else.

Every file is one idea, forward beside backward, with the papers' letters and in float64. Read them in this order:

1. `softmax`, `attention` (scale, masks), `multi_head` (heads, shared keys), `positions`
2. `linear`, `feed_forward`, `layernorm`, `block`, `decoder`
3. `loss`, `adam`, `gradcheck`, `training`, `tasks`
4. `cache`: what generation keeps
5. `memory`: what can be kept instead

A forward function returns its result and what its backward needs; a backward function takes the gradient of the result
(dy is ∂L/∂y) and returns those of the arguments.

Letters: B sequences, T tokens (queries), S tokens (keys), d width, h heads, d_k channels of a head, d_ff inner width
of a feed-forward network, L symbols of a task.
"""

from __future__ import annotations

from .adam import Adam
from .attention import attention, attention_backward, causal_mask, padding_mask, visible
from .block import block, block_backward, block_parameters
from .cache import LayerCache, cache_bytes
from .decoder import Config, Decoder, Run
from .gradcheck import Coordinate, check_gradients, difference
from .layernorm import layernorm, layernorm_backward
from .loss import cross_entropy, cross_entropy_backward
from .multi_head import Heads, multi_head, multi_head_backward
from .positions import learned, learned_backward, rotary, rotary_backward, sinusoidal
from .softmax import softmax, softmax_backward
from .tasks import batch, sequences
from .training import generate, train_step

__all__ = [
    "Adam",
    "Config",
    "Coordinate",
    "Decoder",
    "Heads",
    "LayerCache",
    "Run",
    "attention",
    "attention_backward",
    "batch",
    "block",
    "block_backward",
    "block_parameters",
    "cache_bytes",
    "causal_mask",
    "check_gradients",
    "cross_entropy",
    "cross_entropy_backward",
    "difference",
    "generate",
    "layernorm",
    "layernorm_backward",
    "learned",
    "learned_backward",
    "multi_head",
    "multi_head_backward",
    "padding_mask",
    "rotary",
    "rotary_backward",
    "sequences",
    "sinusoidal",
    "softmax",
    "softmax_backward",
    "train_step",
    "visible",
]
