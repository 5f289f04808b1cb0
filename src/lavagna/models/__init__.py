"""Configurations, models, and the state of a model."""

from __future__ import annotations

from .config import ClassifierConfig, LanguageModelConfig
from .language_model import Classifier, LanguageModel, Output
from .layers import expand_layers
from .state import BlockState, ModelState

__all__ = [
    "BlockState",
    "Classifier",
    "ClassifierConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "ModelState",
    "Output",
    "expand_layers",
]
