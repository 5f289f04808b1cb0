"""What this machine is, for results that depend on it."""

from __future__ import annotations

import os
import platform

__all__ = ["processor", "usable_cpus"]


def usable_cpus() -> int:
    """How many processors this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def processor() -> str:
    """The processor's name; platform.processor() is empty on many Linux systems."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except FileNotFoundError:
        pass
    return platform.processor() or platform.machine()
