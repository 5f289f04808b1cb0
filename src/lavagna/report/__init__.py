"""Reports: figures, and the page that shows them."""

from __future__ import annotations

from .page import render, write_report

__all__ = ["render", "write_report"]
