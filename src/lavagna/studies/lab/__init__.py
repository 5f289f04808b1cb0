"""The lab: experiments on attention and on what replaces it, each beside the figures it must reproduce."""

from __future__ import annotations

from .experiments import EXPERIMENTS, chosen, each_once, load
from .reproduce import Result, page, reproduce, write, write_index
from .work import Work

__all__ = ["EXPERIMENTS", "Result", "Work", "chosen", "each_once", "load", "page", "reproduce", "write", "write_index"]
