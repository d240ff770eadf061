"""The report as a picture: how latencies are distributed, their tails, and where the median call's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from netreplay.clients.latency.figures import SHARES, Series, percentile

# Told apart by people who see red and green as one, and by dashes in print.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_SHARE_COLORS = {"client": "#7a5195", "wire": "#ffb000", "server": "#2f4b7c"}
_GREY = "#6b7078"
_POINTS = 2000  # of one curve


def _thinned(count: int) -> NDArray[np.intp]:
    """Places of so many rising values that make a curve: even in the middle, every one at the ends."""
    if count <= _POINTS:
        return np.arange(count)
    even = np.linspace(0, count - 1, _POINTS).astype(np.intp)
    tail = count - np.unique(np.geomspace(1, count, _POINTS).astype(np.intp))
    return np.unique(np.concatenate([even, tail]))


def draw(
    labels: Sequence[str], operations: Sequence[tuple[str, str, Sequence[Series]]], path: Path, below: str
) -> None:
    """Writes the picture: a column per operation (name, what one call is, a series per memory). `below` is one line."""
    columns = len(operations)
    bars = 0.42 * len(labels) + 0.55
    width = max(7.5, 3.6 * columns)
    figure = Figure(figsize=(width, 6.2 + bars), layout=ConstrainedLayoutEngine(h_pad=0.08, w_pad=0.06))
    grid = figure.subplots(3, columns, squeeze=False, height_ratios=(2.7, 2.7, bars))
    for column, (name, call, series) in enumerate(operations):
        cumulative, tail, shares = grid[:, column]
        cumulative.set_title(f"{name}\n{call}", fontsize=10)
        _curves(cumulative, tail, labels, series)
        _bars(shares, labels, series, name_them=column == 0)
    grid[0, 0].set_ylabel("calls that took no longer")
    grid[1, 0].set_ylabel("calls that took longer")
    lines, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=min(4, len(labels)), frameon=False, fontsize=9)
    patches, parts = _share_legend(grid[2])
    figure.legend(patches, parts, loc="outside lower center", ncols=3, frameon=False, fontsize=9, title=below)
    figure.legends[-1].get_title().set(fontsize=8, color=_GREY)
    figure.savefig(path, dpi=130)


def _curves(cumulative: Axes, tail: Axes, labels: Sequence[str], series: Sequence[Series]) -> None:
    rarest, least, usual, most = 0.1, np.inf, 0.0, 0.0
    for index, (label, one) in enumerate(zip(labels, series, strict=True)):
        rising = one.latencies()
        style: dict[str, Any] = {
            "color": _COLORS[index % len(_COLORS)],
            "linestyle": _DASHES[index % len(_DASHES)],
            "linewidth": 1.7,
        }
        if not len(rising):
            cumulative.plot([], [], label=label, **style)
            continue
        places = _thinned(len(rising))
        cumulative.plot(rising[places], (places + 1) / len(rising), label=label, **style)
        above = places[places < len(rising) - 1]
        tail.plot(rising[above], 1 - (above + 1) / len(rising), **style)
        rarest = min(rarest, 1 / len(rising))
        least = min(least, float(rising[0]))
        usual = max(usual, float(percentile(rising, 200)))
        most = max(most, float(rising[-1]))
    for axes, right in ((cumulative, usual), (tail, most)):
        axes.set_xscale("log")
        if right:
            axes.set_xlim(least * 0.85, right * 1.2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right < 100 * least else (1,)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
    cumulative.set_ylim(0, 1.02)
    cumulative.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    tail.set_yscale("log")
    tail.set_ylim(rarest * 0.7, 1.0)
    tail.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:g} %"))
    tail.yaxis.set_minor_formatter(NullFormatter())
    tail.set_xlabel("microseconds", fontsize=9)


def _bars(axes: Axes, labels: Sequence[str], series: Sequence[Series], *, name_them: bool) -> None:
    """Medians of client, wire and server on one another; a memory in this process is all client."""
    widest = 0.0
    for row, one in enumerate(series):
        summary = one.summary()
        if summary is None:
            continue
        parts = summary.shares or (summary.figure, 0.0, 0.0)
        left = 0.0
        for name, part in zip(SHARES, parts, strict=True):
            axes.barh(row, part, left=left, height=0.62, color=_SHARE_COLORS[name], label=name, linewidth=0)
            left += part
        axes.annotate(f"{left:.3g}", (left, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5)
        widest = max(widest, left)
    axes.set_yticks(range(len(labels)), labels if name_them else [""] * len(labels), fontsize=9)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, widest * 1.22 or 1.0)
    axes.set_xlabel("medians of the shares, microseconds", fontsize=9)
    axes.tick_params(axis="x", labelsize=8.5)
    axes.spines[["top", "right"]].set_visible(False)


def _share_legend(axes: Sequence[Axes]) -> tuple[list[Any], list[str]]:
    """One patch per share, wherever one was drawn."""
    found: dict[str, Any] = {}
    for one in axes:
        for patch, name in zip(*one.get_legend_handles_labels(), strict=True):
            found.setdefault(name, patch)
    return list(found.values()), list(found)
