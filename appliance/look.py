"""`netreplay tables` and `netreplay ping`: a look at a running server."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import numpy as np

from netreplay.clients.connect import connect
from netreplay.clients.looking import Histogram, Histograms
from netreplay.clients.replay import TableInfo
from netreplay.memory import human

_COLUMNS = (
    "table",
    "items",
    "capacity",
    "min",
    "inserted",
    "sampled",
    "updated",
    "evicted",
    "ratio",
    "steps",
    "bytes",
    "max priority",
)


def _row(info: TableInfo) -> list[str]:
    return [
        info.name,
        str(info.size),
        str(info.capacity),
        str(info.min_size),
        str(info.inserted),
        str(info.sampled),
        str(info.updated),
        str(info.evicted),
        f"{info.replay_ratio:.3g}",
        f"{info.steps}/{info.steps_capacity}",
        human(info.item_bytes_held + info.step_bytes_held),
        f"{info.max_priority:.4g}",
    ]


_BAR = 40  # characters of the longest


def _seconds(value: float) -> str:
    for unit, size in (("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("s", 1.0), ("min", 60.0), ("h", 3600.0)):
        if value < 1000 * size or unit == "h":
            return f"{value / size:.3g} {unit}"
    raise AssertionError


def _times(low: float, high: float) -> str:
    return f"{low:.0f}" if high - low == 1 else f"{low:.0f} to {high - 1:.0f}"


def _bars(name: str, histogram: Histogram, label: Callable[[float, float], str]) -> list[str]:
    """A line for each bucket from the first that holds anything to the last."""
    held = np.flatnonzero(histogram.counts)
    if len(held) == 0:
        return [f"  {name}: nothing"]
    low, high, counts = histogram.edges[:-1], histogram.edges[1:], histogram.counts
    shown = range(held[0], held[-1] + 1)
    labels = [label(float(low[i]), float(high[i])) for i in shown]
    width, most = max(map(len, labels)), int(counts.max())
    digits = len(str(most))
    lines = [f"  {name}"]
    for text, i in zip(labels, shown, strict=True):
        bar = "#" * -(-_BAR * int(counts[i]) // most)
        lines.append(f"    {text.rjust(width)}  {int(counts[i]):{digits}}  {bar}".rstrip())
    return lines


def _gaps(histogram: Histogram) -> Histogram:
    """Without the empty binades between zero and the least positive priority."""
    held = np.flatnonzero(histogram.counts)
    if len(held) < 2 or held[0] != 0:
        return histogram
    keep = np.r_[0, held[1] : len(histogram.counts)]
    return Histogram(np.r_[histogram.edges[keep], histogram.edges[-1]], histogram.counts[keep])


def _numbers(found: Histograms) -> dict[str, Any]:
    kinds = {"priority": found.priority, "age": found.age, "sampled": found.sampled}
    lists = {name: {"from": kind.edges[:-1].tolist(), "counts": kind.counts.tolist()} for name, kind in kinds.items()}
    return {"items": found.items, **lists}


def _drawn(found: Histograms) -> list[str]:
    priority = _gaps(found.priority)
    return [
        *_bars("raw priority, from", priority, lambda low, _: f"{low:.4g}"),
        *_bars("age, from", found.age, lambda low, _: _seconds(low)),
        *_bars("times sampled", found.sampled, _times),
    ]


@click.command()
@click.argument("url")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for the server.")
@click.option("--histograms", is_flag=True, help="Also how priorities, ages and times sampled are distributed.")
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every number.")
def tables(url: str, timeout: float, histograms: bool, as_json: bool) -> None:
    """Show what is in the tables of the server at URL."""
    with connect(url, auth="off", timeout=timeout) as replay:
        infos = replay.tables()
        found = {name: replay.table(name).histograms() for name in infos} if histograms else {}
    if as_json:
        numbers: dict[str, dict[str, Any]] = {name: info._asdict() for name, info in infos.items()}
        for name, histogram in found.items():
            numbers[name]["histograms"] = _numbers(histogram)
        click.echo(json.dumps(numbers, indent=2))
        return
    lines = [list(_COLUMNS), *(_row(info) for info in infos.values())]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_COLUMNS))]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        click.echo("  ".join(cells).rstrip())
    for name, histogram in found.items():
        click.echo(f"\n{name}: {histogram.items} items")
        click.echo("\n".join(_drawn(histogram)))


@click.command()
@click.argument("url")
@click.option("--timeout", default=5.0, show_default=True, help="Seconds to wait for each answer.")
@click.option("-n", "--count", default=10, show_default=True, type=click.IntRange(1), help="Round trips.")
@click.option(
    "-s", "--size", default=64, show_default=True, type=click.IntRange(0), help="Bytes each way, in one datagram."
)
def ping(url: str, timeout: float, count: int, size: int) -> None:
    """Measure round trips to the server at URL."""
    with connect(url, auth="off", timeout=timeout) as replay:
        pings = [replay.ping(size) for _ in range(count)]
    trips = sorted(p.round_trip * 1e6 for p in pings)
    server = sorted(p.server * 1e6 for p in pings)
    click.echo(
        f"{url}: {count} round trips of {size} B: least {trips[0]:.1f} us, median {trips[count // 2]:.1f} us, "
        f"most {trips[-1]:.1f} us; in the server {server[count // 2]:.1f} us"
    )
