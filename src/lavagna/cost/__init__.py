"""What a model costs before it is trained: parameters, FLOPs, memory, steps and paths."""

from __future__ import annotations

from .plan import At, Layer, Plan, plan

__all__ = ["At", "Layer", "Plan", "plan"]
