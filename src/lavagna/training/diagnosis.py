"""Where a loss stopped being finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..ops.tree import leaves

__all__ = ["first_non_finite"]


def first_non_finite(model: nn.Module, run: Callable[[], object]) -> str:
    """Name the first module, in the order of computation, whose output is not finite.

    Args:
        model: whose modules are watched.
        run: computes the loss again, forward only.

    Returns:
        A sentence's part such as "blocks.3.mixer.q_proj (output)"; a parameter is named where it is one already,
        or where all outputs are finite and its gradient is the first that is not.
    """
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"{name} (parameter)"
    found: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            tensors = [t for part in parts if isinstance(part, Tensor | tuple) for t in leaves(part)]
            if not found and any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in tensors):
                found.append(f"{name} (output)")

        return hook

    handles = [module.register_forward_hook(watch(name or "model")) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            run()
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return found[0]
    # Backward runs from the loss down, so the last parameter is the first to get a gradient.
    for name, parameter in reversed(list(model.named_parameters())):
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"{name} (gradient)"
    return "the loss itself"
