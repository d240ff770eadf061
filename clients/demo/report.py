"""The report folder: report.json, latency.md, and learning-curve.png or, where nothing is learned, throughput.png."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from netreplay.clients.demo import throughput
from netreplay.clients.demo.latency import Histogram, human
from netreplay.clients.demo.record import SERVER_COUNTS, TABLE_COUNTS, Record
from netreplay.clients.demo.view import LATENCIES

JSON, LATENCY, CURVE, THROUGHPUT = "report.json", "latency.md", "learning-curve.png", "throughput.png"
_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


def write(record: Record, folder: Path, outcome: str, machine: dict[str, object], versions: dict[str, str]) -> None:
    """Writes all of it. `outcome` is "solved", "time passed", "unsolved", "stalled", "interrupted" or "failed"."""
    report = contents(record, outcome, machine, versions)
    (folder / JSON).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    (folder / LATENCY).write_text(latency_table(record, machine), encoding="utf-8")
    verdict = outcome if record.solved is None else f"solved after {_solved_at(record):.0f} s"
    chart = load_chart()
    if record.config.evaluated:
        chart.draw(record, folder / CURVE, verdict)
    else:
        chart.draw_throughput(record, folder / THROUGHPUT, verdict)


def load_chart() -> ModuleType:
    """The module that draws. Not imported before it is wanted: matplotlib takes a second."""
    return import_module("netreplay.clients.demo.chart")


def _solved_at(record: Record) -> float:
    return next((point.seconds for point, evaluation in record.evaluations if evaluation.solved), math.nan)


def contents(record: Record, outcome: str, machine: dict[str, object], versions: dict[str, str]) -> dict[str, Any]:
    """What report.json holds; times in seconds, since the start where they are moments."""
    server, solved = record.server, record.solved
    return {
        "outcome": outcome,
        "seed": record.config.seed,
        "begun": datetime.fromtimestamp(record.begun_at, UTC).isoformat(timespec="seconds"),
        "seconds": round(record.now, 2),
        "solved": None
        if solved is None
        else {
            "seconds": round(_solved_at(record), 2),
            "updates": solved.updates,
            "mean_return": solved.mean_return,
            "confirmed": solved.confirmed,
        },
        "environment": record.config.environment,
        "environment_steps": record.steps,
        "episodes": record.episodes,
        "updates": record.updates,
        "evaluations": [
            {
                "seconds": round(point.seconds, 2),
                "steps": point.steps,
                "updates": evaluation.updates,
                "mean_return": evaluation.mean_return,
                "confirmed": evaluation.confirmed,
            }
            for point, evaluation in record.evaluations
        ],
        "rates": throughput.contents(record),
        "server_counted": {
            "note": "summed over the servers of the run; one that was killed is known up to 0.6 s before its end",
            "servers": len(server.ended) + bool(server.present),
            **{name: server.total("server", name) for name in SERVER_COUNTS},
            "table": {name: server.total("table", name) for name in TABLE_COUNTS},
            "lives": [*server.ended, *([server.present] if server.present else [])],
        },
        "learner_counted": {"batches": record.batches, "stale_updates": record.stale},
        "restarts": [asdict(restart) for restart in record.restarts],
        "losses": [{"named_by": who, **loss._asdict()} for who, loss in record.losses],
        "reconnects": {name: state.reconnects for name, state in record.processes.items() if name != "server"},
        "latencies": {name: _summary(record.latencies[name]) for name in LATENCIES if name in record.latencies},
        "events": [{"seconds": round(seconds, 2), "what": text} for seconds, text in record.events],
        "config": asdict(record.config),
        "machine": machine,
        "versions": versions,
    }


def _summary(histogram: Histogram) -> dict[str, float]:
    return {
        "calls": histogram.total,
        **{name: float(f"{histogram.percentile(fraction):.4g}") for name, fraction in _PERCENTILES.items()},
    }


def latency_table(record: Record, machine: dict[str, object]) -> str:
    """Markdown: every kind of call over the whole run, restarts included."""
    rows = [["call", *_PERCENTILES, "calls"]]
    for name, words in LATENCIES.items():
        histogram = record.latencies.get(name, Histogram())
        percentiles = [human(histogram.percentile(fraction)) for fraction in _PERCENTILES.values()]
        rows.append([words, *percentiles, f"{histogram.total:,}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    rows.insert(1, ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])])
    lines = [
        f"| {row[0].ljust(widths[0])} | "
        + " | ".join(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        + " |"
        for row in rows
    ]
    return (
        f"# Latencies of a demo, seed {record.config.seed}\n\n"
        f"As the processes measured them, over {record.config.transport}:// on this host, while environments and\n"
        f"learning shared the cores ({machine['cpu']}, {machine['cores']} cores). Buckets are 4.5% wide. The wait\n"
        "for a sample includes that for the table to fill, and every wait for a server that was started again.\n\n"
        + "\n".join(lines)
        + "\n"
    )
