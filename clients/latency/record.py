"""The report as JSON. Its schema stands in docs/latency.md; SCHEMA rises when a reader of the old one would err."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import netreplay
from netreplay.clients.demo.machine import describe
from netreplay.clients.latency.figures import Summary, change, overlap

SCHEMA = 1

Measured = Sequence[tuple[str, str, Sequence[Summary | None]]]
"""by operation: its name, what one call is, a summary per memory"""


@dataclass
class Environment:
    """The machine and its state when the run began; `end` adds that at its end."""

    machine: dict[str, object]
    load_begin: tuple[float, float, float]
    load_end: tuple[float, float, float] | None = None

    @classmethod
    def begin(cls) -> Environment:
        """Now."""
        return cls(describe(), os.getloadavg())

    def end(self) -> None:
        """The measuring is over."""
        self.load_end = os.getloadavg()

    def fields(self, core: int | None) -> dict[str, Any]:
        """For the report."""
        return {
            "cpu": self.machine["cpu"],
            "cores": os.cpu_count(),
            "cores_allowed": self.machine["cores"],
            "core": core,
            "memory": self.machine["memory"],
            "kernel": self.machine["kernel"],
            "architecture": self.machine["architecture"],
            "python": platform.python_version(),
            "netreplay": netreplay.__version__,
            "load_begin": [round(load, 2) for load in self.load_begin],
            "load_end": None if self.load_end is None else [round(load, 2) for load in self.load_end],
        }

    def line(self, core: int | None) -> str:
        """For people."""
        end = "?" if self.load_end is None else f"{self.load_end[0]:.2f}"
        pinned = "" if core is None else f", client on core {core}"
        return (
            f"{self.machine['cpu']}, {self.machine['cores']} cores{pinned}, Linux {self.machine['kernel']}, "
            f"Python {platform.python_version()}; load {self.load_begin[0]:.2f} at the beginning, {end} at the end"
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _result(url: str, label: str, summary: Summary | None, base: Summary | None) -> dict[str, Any] | None:
    if summary is None:
        return None
    compared = None
    if base is not None and base is not summary:
        compared = {
            "ratio": round(summary.figure / base.figure, 4),
            "change_percent": round(100 * change(summary.figure, base.figure), 1),
            "spreads_overlap": overlap(summary.spread, base.spread),
        }
    return {
        "url": url,
        "label": label,
        "count": summary.count,
        "min": _rounded(summary.least),
        "mean": _rounded(summary.mean),
        "max": _rounded(summary.most),
        "percentiles": {name: _rounded(value) for name, value in summary.percentiles.items()},
        "median_of_blocks": _rounded(summary.figure),
        "spread_of_blocks": [_rounded(value) for value in summary.spread],
        "blocks": [_rounded(value) for value in summary.blocks],
        "shares": None
        if summary.shares is None
        else {name: _rounded(value) for name, value in summary.shares._asdict().items()},
        "against_first": compared,
    }


def record(
    *,
    began: str,
    seconds: float,
    complete: bool,
    environment: dict[str, Any],
    settings: dict[str, Any],
    memories: list[dict[str, Any]],
    measured: Measured,
) -> dict[str, Any]:
    """The whole report; latencies in microseconds."""
    return {
        "schema": SCHEMA,
        "command": "netreplay latency",
        "unit": "us",
        "began": began,
        "seconds": round(seconds, 2),
        "complete": complete,
        "environment": environment,
        "settings": settings,
        "memories": memories,
        "operations": [
            {
                "name": name,
                "call": call,
                "results": [
                    _result(memory["url"], memory["label"], summary, summaries[0])
                    for memory, summary in zip(memories, summaries, strict=True)
                ],
            }
            for name, call, summaries in measured
        ],
    }
