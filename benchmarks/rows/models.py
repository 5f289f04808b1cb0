"""Whole models: training steps, generation and prefill."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from lavagna.data.packing import Batch
from lavagna.generation import read, stream
from lavagna.mixers.registry import MIXERS
from lavagna.models import LanguageModel, LanguageModelConfig
from lavagna.models.presets import preset
from lavagna.ops.dispatch import automatic
from lavagna.training.config import TrainingConfig
from lavagna.training.loss import BatchLoss
from lavagna.training.optimizer import make_optimizer

from ..limits import MB, huge, product
from ..limits import read as read_memory
from ..measure import SLOW, Make, Ratio, ShareOutside, Side
from ..row import Row, at_least, at_most, shown

BYTES = 257  # a vocabulary of bytes and the end of a document


def training_step(config: dict[str, Any], B: int, T: int, impl: str = "auto") -> Side:
    """A step of the training loop on random tokens: loss, gradients, their norm, the optimiser. Work in tokens."""
    model = LanguageModel(LanguageModelConfig(**{"vocab_size": BYTES, **config}), seed=0)
    training = TrainingConfig()
    optimizer, loss_of = make_optimizer(model, training), BatchLoss(model)
    tokens = torch.randint(BYTES, (2, B, T), generator=torch.Generator().manual_seed(0))
    batch = Batch(tokens[0], tokens[1], torch.ones(B, T))

    def run() -> None:
        with automatic(impl):
            optimizer.zero_grad(set_to_none=True)
            loss, _ = loss_of(batch, None)
            (loss / (B * T)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            optimizer.step()

    return Side(run, B * T)


@cache
def mamba_130m(dtype: torch.dtype) -> LanguageModel:
    """Random weights in the published shape."""
    return LanguageModel(LanguageModelConfig(**preset("mamba-130m")), seed=0).to(dtype).eval()


def generated_tokens(dtype: torch.dtype, tokens: int = 256) -> Side:
    """As many tokens of one sequence as ``lavagna generate`` draws by default, drawn so; work in bytes of weights."""
    model = mamba_130m(dtype)
    reading = read(model, [torch.arange(16)])
    weights = sum(parameter.nbytes for parameter in model.parameters())

    def run() -> None:
        for _ in stream(model, reading, max_tokens=tokens):
            pass

    return Side(run, float(tokens * weights))


def prefill(T: int = 1024) -> Side:
    """Reading a prompt; work in FLOPs of matrix products. The head reads its last token alone."""
    model = mamba_130m(torch.float32)
    prompt = torch.randint(model.config.vocab_size, (T,), generator=torch.Generator().manual_seed(0))
    weights = sum(m.weight.numel() for m in model.blocks.modules() if isinstance(m, nn.Linear))
    return Side(lambda: read(model, [prompt]), 2.0 * T * weights + 2.0 * model.embedding.weight.numel())


def weights_at(dtype: torch.dtype) -> Make:
    return partial(generated_tokens, dtype)


READ: Make = read_memory(256 * MB, huge)
DELTANET = {"width": 512, "layers": "6*gated_deltanet"}

#: mixer -> how many times faster it must train with the native kernels than without
FASTER: dict[str, float] = {"mamba": 3, "gated_deltanet": 3}


def trained(mixer: str, impl: str) -> Callable[[], Side]:
    return partial(training_step, preset(f"{mixer}-tiny"), 4, 256, impl)


GENERATION = tuple(
    Row(
        f"generate-{name}",
        f"generate, mamba-130m shape, batch 1, {name} weights, 2 threads: bytes of weights a second",
        "reading memory, huge pages, 2 threads",
        at_least(0.75, "%"),
        Ratio(weights_at(dtype), READ, threads=(2, 2), rounds=SLOW),
    )
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16))
)

ROWS = (
    Row(
        "training-rest",
        "training step, 6 layers of Gated DeltaNet, width 512, T 2048, B 2, 2 threads: outside products and kernels",
        "the whole step",
        at_most(0.25, "%"),
        ShareOutside(partial(training_step, DELTANET, 2, 2048), 2),
    ),
    Row(
        "prefill",
        "prefill, mamba-130m shape, T 1024, float32, 2 threads: FLOPs of its matrix products a second",
        "torch product 1024³, 2 threads",
        at_least(0.65, "%"),
        Ratio(prefill, product(), threads=(2, 2)),
    ),
    *(
        Row(
            f"training-{mixer.replace('_', '-')}",
            f"training tokens a second, {mixer}, 1 M parameters, T 256, B 4, 2 threads",
            "our torch path",
            at_least(FASTER[mixer]) if mixer in FASTER else shown("×"),
            Ratio(trained(mixer, "auto"), trained(mixer, "torch"), threads=(2, 2)),
        )
        for mixer in MIXERS
        if mixer != "attention"
    ),
)
