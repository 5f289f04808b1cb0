"""AdamW with decay groups, and the learning rate at each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from .config import TrainingConfig

__all__ = ["learning_rate", "make_optimizer", "parameter_groups"]


def parameter_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those that weight decay acts on, and those that it does not.

    Decayed are matrices, save embeddings and what a module names in its ``undecayed`` (a decay rate's logarithm,
    say, whose zero means something).
    """
    decayed: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen or not parameter.requires_grad:
                continue
            seen.add(id(parameter))
            is_matrix = parameter.ndim >= 2 and not isinstance(module, nn.Embedding)
            group = decayed if is_matrix and name not in getattr(module, "undecayed", ()) else others
            group[f"{prefix}.{name}" if prefix else name] = parameter
    return decayed, others


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019) with weight decay on the decayed group alone."""
    decayed, others = parameter_groups(model)
    groups = [
        {"params": list(decayed.values()), "weight_decay": config.weight_decay},
        {"params": list(others.values()), "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        fused=True,  # one call for all parameters: a small model would spend its time in the loop over them
    )


def learning_rate(step: int, config: TrainingConfig) -> float:
    """The rate of step `step`, 0 ≤ step < steps: warm-up, then cosine or stable and decay."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return config.learning_rate * (step + 1) / warmup
    if config.schedule == "cosine":
        begin, share = warmup, _cosine
    else:
        begin, share = config.steps - round(config.decay * config.steps), _linear
    if step < begin:
        return config.learning_rate
    progress = (step - begin + 1) / max(config.steps - begin, 1)
    return config.learning_rate * (config.final_rate + (1 - config.final_rate) * share(progress))


def _cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


def _linear(progress: float) -> float:
    return 1 - progress
