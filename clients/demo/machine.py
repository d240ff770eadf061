"""On what a demo ran: without it no number of the report means anything."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("netreplay", "numpy", "torch", "gymnasium", "ale-py", "cffi")


def _value(path: str, key: str) -> str:
    """The value behind `key:` in a file of /proc."""
    try:
        lines = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "unknown"
    found = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(found, "unknown")


def describe() -> dict[str, object]:
    """Processor, cores that may be used, load of the last minute, memory, kernel."""
    return {
        "cpu": _value("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "load_1min": round(os.getloadavg()[0], 2),
        "memory": _value("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }


def versions() -> dict[str, str]:
    """Of Python and of what the demo uses."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
