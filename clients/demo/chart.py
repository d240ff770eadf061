"""The learning curve, or what was moved, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from netreplay.clients.demo.record import Point, Record, Restart
from netreplay.clients.demo.throughput import step_bytes

_WINDOW = 50  # episodes in the actors' running mean
_MARKED = 4  # restarts in a column, before their names begin again at the bottom
_BLUE, _ORANGE, _RED, _GREY = "#1f5fa8", "#d9822b", "#b3261e", "#8a8f98"


def running_mean(values: Sequence[float], window: int = _WINDOW) -> NDArray[np.float64]:
    """Mean of each value and the up to `window` - 1 before it, float64 [n]."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    means: NDArray[np.float64] = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def draw(record: Record, path: Path, verdict: str) -> None:
    """Greedy evaluations and the actors' returns, over environment steps and over time; restarts are marked."""
    figure = Figure(figsize=(11, 4.8), layout=ConstrainedLayoutEngine(wspace=0.04))
    by_steps, by_time = figure.subplots(1, 2, sharey=True)
    _curves(by_steps, record, lambda at: float(at.steps), "environment steps")
    _curves(by_time, record, lambda at: at.seconds, "seconds")
    by_steps.set_ylabel("undiscounted return")
    handles, labels = by_steps.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    config = record.config
    figure.suptitle(f"netreplay demo: {config.environment}, {config.actors} actors, seed {config.seed}: {verdict}")
    figure.savefig(path, dpi=120)


def draw_throughput(record: Record, path: Path, verdict: str) -> None:
    """Rates and the actors' returns over time; restarts are marked."""
    config = record.config
    figure = Figure(figsize=(12, 4.6), layout=ConstrainedLayoutEngine(wspace=0.06))
    counts, traffic, returns = figure.subplots(1, 3)
    seconds = [now for now, _ in record.history]

    def rate(axes: Axes, name: str, factor: float, color: str, label: str) -> None:
        axes.plot(seconds, [rates[name] * factor for _, rates in record.history], color=color, label=label)

    rate(counts, "steps", 1.0, _ORANGE, "environment steps")
    rate(counts, "inserts", 1.0, _GREY, "items inserted")
    rate(counts, "batches", config.batch_size, _BLUE, "items learned from")
    counts.set_title("per second", fontsize=10)
    rate(traffic, "steps", step_bytes(config) / 1e6, _ORANGE, "steps in")
    rate(traffic, "sampled bytes", 1e-6, _BLUE, "samples out")
    traffic.set_title("MB per second", fontsize=10)
    returns.set_title(f"returns of the actors' {record.episodes:,} episodes", fontsize=10)
    _returns(returns, record, lambda at: at.seconds)
    if not record.returns:
        returns.set_yticks([])
        returns.text(0.5, 0.5, "none has ended yet", transform=returns.transAxes, ha="center", color=_GREY)
    for axes in (counts, traffic, returns):
        _mark_restarts(axes, record, lambda at: at.seconds)
        _dress(axes, "seconds")
        axes.set_xlim(right=max(1.0, record.now))
        if axes is not returns:
            axes.set_ylim(bottom=0)
        if axes is not returns or record.returns:
            axes.legend(frameon=False, fontsize=8, loc="best")
    figure.suptitle(f"netreplay demo: {config.environment}, {config.actors} actors, seed {config.seed}: {verdict}")
    figure.savefig(path, dpi=120)


def _returns(axes: Axes, record: Record, place: Callable[[Point | Restart], float]) -> None:
    """Of the actors' episodes."""
    x = [place(point) for point in record.returns]
    values = [point.value for point in record.returns]
    axes.scatter(x, values, s=5, color=_ORANGE, alpha=0.35, linewidths=0)
    label = f"actors (exploring), mean of {_WINDOW} episodes"
    axes.plot(x, running_mean(values), color=_ORANGE, linewidth=1.5, label=label)


def _curves(axes: Axes, record: Record, place: Callable[[Point | Restart], float], label: str) -> None:
    _returns(axes, record, place)
    greedy = [point for point, _ in record.evaluations]
    axes.plot(
        [place(point) for point in greedy],
        [point.value for point in greedy],
        color=_BLUE,
        marker="o",
        markersize=4,
        linewidth=1.8,
        label=f"greedy, mean of {record.config.evaluation_episodes} episodes",
    )
    confirmed = [(place(point), found.confirmed) for point, found in record.evaluations if found.confirmed is not None]
    if confirmed:
        axes.plot(
            *zip(*confirmed, strict=True),
            color=_BLUE,
            marker="D",
            markersize=8,
            markerfacecolor="none",
            linestyle="none",
            label="the same with fresh seeds",
        )
    axes.axhline(record.config.solved_return, color=_GREY, linestyle="--", linewidth=1)
    axes.annotate(
        f"solved: {record.config.solved_return:g}",
        (0.01, record.config.solved_return),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        color=_GREY,
        fontsize=9,
    )
    _mark_restarts(axes, record, place)
    _dress(axes, label)
    axes.set_ylim(0, 520)


def _mark_restarts(axes: Axes, record: Record, place: Callable[[Point | Restart], float]) -> None:
    for i, restart in enumerate(record.restarts):
        axes.axvline(place(restart), color=_RED, linewidth=1, linestyle=":", label="" if i else "a process died")
        axes.annotate(
            restart.who,
            (place(restart), 0.02 + 0.12 * (i % _MARKED)),
            xycoords=("data", "axes fraction"),
            xytext=(2, 0),
            textcoords="offset points",
            rotation=90,
            color=_RED,
            fontsize=8,
        )


def _dress(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.grid(alpha=0.355)
    axes.spines[["top", "right"]].set_visible(False)
