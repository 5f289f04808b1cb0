"""The mixers: one file each, found through the registry."""

from __future__ import annotations

from .base import Mixer
from .registry import MIXERS, MLPS, build

__all__ = ["MIXERS", "MLPS", "Mixer", "build"]
