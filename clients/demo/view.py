"""What a person sees while the demo runs: a live panel on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from netreplay.clients.demo.latency import human as human_seconds
from netreplay.clients.demo.record import Record
from netreplay.clients.demo.throughput import append_share
from netreplay.memory import human as human_bytes

LINE_SECONDS = 5.0
_WIDTH = 80
_ROWS = 21
"""of the terminal that everything but actors and events takes"""
_EVENTS = 4
_BARS = "▁▂▃▄▅▆▇█"
_CURVE = 40  # evaluations shown
_HIGHEST = 500.0  # return of a CartPole-v1 episode
LATENCIES = {
    "act": "actor: choose actions",
    "step": "actor: step of all environments",
    "append": "actor: append",
    "flush": "actor: flush",
    "fetch": "actor: fetch parameters",
    "sample": "learner: wait for a sample",
    "learn": "learner: learn from a batch",
    "update": "learner: update priorities",
    "publish": "learner: publish parameters",
    "table info": "learner: table info",
}
"""the calls that are timed, in words"""


class View(Protocol):
    """A context manager, shown the record again and again."""

    def show(self) -> None:
        """Brings what is seen up to date, if it is time."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def clock(seconds: float) -> str:
    """Minutes and seconds, "4:07"."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"


def sparkline(values: list[float], highest: float) -> str:
    """One character a value, 0 to `highest`."""
    return "".join(_BARS[min(len(_BARS) - 1, int(value / highest * len(_BARS)))] for value in values)


def mean_return(record: Record, episodes: int = 50) -> float | None:
    """Of the actors' last episodes."""
    last = [point.value for point in record.returns[-episodes:]]
    return sum(last) / len(last) if last else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


class LiveView:
    """A panel that is drawn anew a few times a second."""

    def __init__(self, record: Record, console: Console | None = None) -> None:
        self._record = record
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._next = 0.0

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._draw()
        self._live.stop()

    def show(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.25
            self._draw()

    def _draw(self) -> None:
        size = self._live.console.size
        width, events = min(size.width, _WIDTH), max(1, size.height - _ROWS - self._record.config.actors)
        self._live.update(panel(self._record, width, events), refresh=True)


def panel(record: Record, width: int = _WIDTH, events: int = _EVENTS) -> RenderableType:
    """Everything at once, `width` characters wide, with the latest `events`."""
    parts: list[RenderableType] = [_time(record), Text(), _processes(record), Text(), _rates(record), Text()]
    parts += [_latencies(record), Text(), _learning(record)]
    if record.events:
        parts += [Text(), *(_event(seconds, text, width) for seconds, text in record.events[-events:])]
    title = f"netreplay demo · {record.config.environment} · seed {record.config.seed}"
    return Panel(Group(*parts), title=title, width=width, padding=(0, 1), border_style="cyan")


def _grid(*justify: str) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    for side in justify:
        grid.add_column(justify=side, no_wrap=True)  # type: ignore[arg-type]
    return grid


def _time(record: Record) -> RenderableType:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True, justify="right")
    left = record.limit - record.now
    bar = ProgressBar(total=record.limit, completed=min(record.now, record.limit))
    grid.add_row(clock(record.now), bar, f"{clock(left)} left")
    return grid


def _processes(record: Record) -> RenderableType:
    grid = _grid("left", "right", "left", "right", "right", "right")
    grid.add_row(*(Text(name, "dim") for name in ("process", "pid", "state", "up", "restarts", "reconnects")))
    for state in record.processes.values():
        working = Text("working", "green") if state.working else Text("starting", "yellow")
        restarts = Text(str(state.restarts), "bold red" if state.restarts else "dim")
        reconnects = Text("" if state.name == "server" else str(state.reconnects), "dim")
        up = clock(record.now - state.since) if state.pid else ""
        grid.add_row(state.name, str(state.pid or ""), working, up, restarts, reconnects)
    return grid


def _rates(record: Record) -> RenderableType:
    rates = {name: meter.rate(record.now) for name, meter in record.rates.items()}
    size = record.server.now("table", "size")
    capacity = record.server.now("table", "capacity")
    grid = _grid("left", "right", "left", "right")
    grid.add_row("inserts/s", f"{rates['inserts']:,.0f}", "sampled/s", human_bytes(round(rates["sampled bytes"])))
    grid.add_row("batches/s", _few(rates["batches"]), "table", f"{size:,} / {capacity:,} items")
    return grid


def _latencies(record: Record) -> RenderableType:
    grid = _grid("left", "right", "right", "right")
    grid.add_row(*(Text(name, "dim") for name in ("latency, last 5 s", "p50", "p99", "calls")))
    for name in ("append", "flush", "sample", "update"):
        recent = record.recent(name)
        p50, p99 = (human_seconds(recent.percentile(fraction)) for fraction in (0.5, 0.99))
        grid.add_row(LATENCIES[name], p50, p99, f"{recent.total:,}")
    return grid


def _few(rate: float) -> str:
    """A rate that may be small."""
    return f"{rate:,.1f}" if rate < 20 else f"{rate:,.0f}"


def _learning(record: Record) -> RenderableType:
    greedy = [point.value for point, _ in record.evaluations]
    grid = _grid("left", "right", "left", "right")
    grid.add_row("steps", f"{record.steps:,}", "episodes", f"{record.episodes:,}")
    grid.add_row("updates", f"{record.updates:,}", "return of the actors", _number(mean_return(record)))
    if not record.config.evaluated:
        frames = record.rates["steps"].rate(record.now) * record.config.frame_skip
        share = append_share(record)
        grid.add_row("frames/s", f"{frames:,.0f}", "append's share of a step", "-" if share is None else f"{share:.1%}")
        return grid
    best = Text(_number(greedy[-1] if greedy else None), "bold green")
    grid.add_row("greedy", Text(sparkline(greedy[-_CURVE:], _HIGHEST), "green"), "greedy evaluation", best)
    return grid


def _event(seconds: float, text: str, width: int) -> Text:
    line = Text(f"{clock(seconds)}  {text}", no_wrap=True, overflow="ellipsis")
    line.truncate(width - 4, overflow="ellipsis")
    line.stylize("dim", 0, 5)
    return line


class LineView:
    """A line every few seconds, and one for each event."""

    def __init__(self, record: Record, stream: TextIO) -> None:
        self._record, self._stream = record, stream
        self._next = LINE_SECONDS
        self._events = 0

    def __enter__(self) -> LineView:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._show_events()

    def show(self) -> None:
        self._show_events()
        if self._record.now >= self._next:
            self._next += LINE_SECONDS
            self._print(progress_line(self._record))

    def _show_events(self) -> None:
        for seconds, text in self._record.events[self._events :]:
            self._print(f"{seconds:6.1f} s  {text}")
        self._events = len(self._record.events)

    def _print(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()


def progress_line(record: Record) -> str:
    """The run now, in a line of some 80 characters."""
    rates = {name: meter.rate(record.now) for name, meter in record.rates.items()}
    greedy = record.evaluations[-1][0].value if record.evaluations else None
    last = (
        f"greedy {_number(greedy)}"
        if record.config.evaluated
        else f"{rates['steps'] * record.config.frame_skip:,.0f} frames/s"
    )
    return (
        f"{record.now:6.1f} s  {record.server.now('table', 'size'):,} items, {rates['inserts']:,.0f} inserts/s, "
        f"{_few(rates['batches'])} batches/s; return {_number(mean_return(record))}, {last}"
    )
