"""The silent bugs of sequence models, found: checks that anyone can run on any torch module or function."""

from __future__ import annotations

from .finding import Example, Finding, Status
from .report import Report
from .run import assert_sound, audit
from .targets import load_target
from .traps import TRAPS, Trap

__all__ = ["TRAPS", "Example", "Finding", "Report", "Status", "Trap", "assert_sound", "audit", "load_target"]
