"""AdamW with decay groups, and the learning rate at each step."""

from __future__ import annotations

import math

import torch
from torch import nn

from .config import TrainingConfig

__all__ = ["learning_rate", "make_optimizer", "parameter_groups"]


def parameter_groups(model: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Parameters by name: those that weight decay acts on, and those that it does not.

    Decayed are the matrices of linear layers, save one that is an embedding too. Nothing else is: the zero of a norm's
    weight, of a bias, of a filter or of a decay rate's logarithm is no simpler than another value.
    """
    spared = {id(p) for m in model.modules() if not isinstance(m, nn.Linear) for p in m.parameters(recurse=False)}
    decayed: dict[str, nn.Parameter] = {}
    others: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_matrix = parameter.ndim == 2 and id(parameter) not in spared
            (decayed if is_matrix else others)[name] = parameter
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
