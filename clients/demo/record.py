"""What happened in a demo: the one thing that the view shows and the report is written from."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from netreplay.clients.demo.config import Config
from netreplay.clients.demo.latency import Histogram
from netreplay.clients.demo.messages import ActorProgress, Evaluation, LearnerProgress, Message
from netreplay.clients.losses import Loss

RATES = ("steps", "inserts", "batches", "sampled bytes")
RECENT_SECONDS = 5.0
"""over which rates and the view's latencies are taken"""
SILENT_SECONDS = 1.5
"""without news of a counter, after which its rate falls"""
SERVER_COUNTS = ("batches", "sampled_bytes", "inserts", "updates", "publishes", "fetches")
HISTORY_SECONDS = 1.0
"""between two entries of the history"""
TABLE_COUNTS = (
    "inserted",
    "sampled",
    "updated",
    "stale",
    "refused",
    "evicted_capacity",
    "evicted_steps",
    "evicted_sampled",
)


class Point(NamedTuple):
    """A value at a moment of the run."""

    seconds: float
    """since the start"""
    steps: int
    """environment steps so far, over all actors"""
    value: float


@dataclass
class Restart:
    """A process that died and was started again."""

    who: str
    pid: int
    seconds: float
    """since the start, when it was noticed"""
    steps: int
    """environment steps so far"""
    code: int
    """return code, negative for a signal"""
    how: str
    """the same in words"""
    last_words: str
    """the last line that it printed"""
    new_pid: int = 0
    recovered_seconds: float | None = None
    """from then until its successor did its work"""


@dataclass
class ProcessState:
    """One of the demo's processes now."""

    name: str
    pid: int = 0
    since: float = 0.0
    """seconds since the start at which it was started"""
    working: bool = False
    """it has done some of its work"""
    restarts: int = 0
    reconnects: int = 0
    """sessions that its client had to open anew"""


class Meter:
    """The rate of a counter over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def observe(self, now: float, count: float) -> None:
        """The counter's value at second `now`; one that fell belongs to a new server."""
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RECENT_SECONDS:
            self._seen.popleft()

    def rate(self, now: float) -> float:
        """Per second, at second `now`; falls when nothing has been observed for a while."""
        if len(self._seen) < 2:
            return 0.0
        (begin, first), (end, last) = self._seen[0], self._seen[-1]
        silent = now - end
        if silent > RECENT_SECONDS:
            return 0.0
        span = end - begin if silent < SILENT_SECONDS else now - begin
        return (last - first) / span if span > 0 else 0.0


class Average:
    """The rate of a counter over the whole run, from the moment at which it first moved."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)

    def observe(self, now: float, count: float) -> None:
        """The counter's value at second `now`."""
        if self._first is None or count <= self._first[1]:
            self._first = (now, count)
        self._last = (now, count)

    @property
    def rate(self) -> float:
        """Per second."""
        if self._first is None or self._last[0] <= self._first[0]:
            return 0.0
        return (self._last[1] - self._first[1]) / (self._last[0] - self._first[0])


@dataclass
class ServerCounts:
    """What servers have counted themselves, the present one and those that died."""

    table: str
    """the one that is counted"""
    present: dict[str, Any] = field(default_factory=dict)
    """the present one's stats file"""
    ended: list[dict[str, Any]] = field(default_factory=list)
    """the last stats files of the dead"""

    def retire(self) -> None:
        """The present one died."""
        if self.present:
            self.ended.append(self.present)
        self.present = {}

    def total(self, part: str, name: str) -> int:
        """Sum over all servers; `part` is "server" or "table"."""
        return sum(self._count(stats, part, name) for stats in [*self.ended, self.present] if stats)

    def now(self, part: str, name: str) -> int:
        """The present server's."""
        return self._count(self.present, part, name) if self.present else 0

    def _count(self, stats: dict[str, Any], part: str, name: str) -> int:
        return int(stats["server"][name] if part == "server" else stats["tables"][self.table][name])


class Record:
    """Fed by the supervisor, read by view and report. Times are seconds since the start."""

    def __init__(self, config: Config, limit: float) -> None:
        self.config, self.limit = config, limit
        self.begin = time.monotonic()
        self.begun_at = time.time()
        self.steps = self.episodes = self.batches = self.updates = self.stale = self.published_bytes = 0
        self.actors: dict[str, int] = {}
        """environment steps of each actor"""
        self.loss = float("nan")
        self.returns: list[Point] = []
        """of the actors' episodes"""
        self.evaluations: list[tuple[Point, Evaluation]] = []
        self.latencies: dict[str, Histogram] = {}
        self.losses: list[tuple[str, Loss]] = []
        """who named it, and what"""
        self.restarts: list[Restart] = []
        self.processes: dict[str, ProcessState] = {}
        self.server = ServerCounts(config.table)
        self.rates = {name: Meter() for name in RATES}
        """of the last seconds"""
        self.averages: defaultdict[str, Average] = defaultdict(Average)
        """of the whole run, under the same names; beside them "learned", "updated", and "steps" with an actor's name"""
        self.history: list[tuple[float, dict[str, float]]] = []
        """seconds since the start, the rates then"""
        self.events: list[tuple[float, str]] = []
        """what a person should know"""
        self._recent: dict[str, deque[tuple[float, Histogram]]] = {}
        self._end: float | None = None

    @property
    def now(self) -> float:
        """Seconds since the start; of the end when that has come."""
        return (time.monotonic() if self._end is None else self._end) - self.begin

    def end(self) -> None:
        """The run is over; what is still told belongs to this moment."""
        self._end = time.monotonic()

    @property
    def solved(self) -> Evaluation | None:
        """The first evaluation that solved it."""
        return next((evaluation for _, evaluation in self.evaluations if evaluation.solved), None)

    def say(self, text: str) -> None:
        """Notes an event."""
        self.events.append((self.now, text))

    def take(self, who: str, message: Message) -> None:
        """Takes in what a process told."""
        state = self.processes[who]
        match message:
            case ActorProgress():
                self.steps += message.steps
                self.episodes += len(message.returns)
                self.returns.extend(Point(self.now, self.steps, value) for value in message.returns)
                self.actors[who] = self.actors.get(who, 0) + message.steps
                self.rates["steps"].observe(self.now, self.steps)
                self.averages["steps"].observe(self.now, self.steps)
                self.averages[f"steps {who}"].observe(self.now, self.actors[who])
                self._take_losses(who, message.losses)
                state.working = state.working or message.steps > 0
            case LearnerProgress():
                self.batches += message.batches
                self.stale += message.stale
                self.updates, self.loss = message.updates, message.loss
                self.published_bytes = message.published_bytes
                self.rates["batches"].observe(self.now, self.batches)
                self.averages["learned"].observe(self.now, self.batches)
                state.working = state.working or message.batches > 0
            case Evaluation():
                self.evaluations.append((Point(self.now, self.steps, message.mean_return), message))
                if message.solved and self.solved is message:
                    self.say(f"solved: {message.mean_return:.1f}, confirmed by {message.confirmed:.1f}")
                return
        state.reconnects = message.reconnects
        for name, histogram in message.latencies.items():
            self.latencies.setdefault(name, Histogram()).merge(histogram)
            self._recent.setdefault(name, deque()).append((self.now, histogram))

    def _take_losses(self, who: str, losses: list[Loss]) -> None:
        if losses:
            self.losses.extend((who, loss) for loss in losses)
            items = sum(loss.items for loss in losses)
            self.say(f"{who} names {items:,} acknowledged items lost with the server")

    def take_stats(self, stats: dict[str, Any]) -> None:
        """Takes in the present server's stats file."""
        self.server.present = stats
        self.rates["inserts"].observe(self.now, self.server.now("table", "inserted"))
        self.rates["sampled bytes"].observe(self.now, self.server.now("server", "sampled_bytes"))
        for name, part, count in (
            ("inserts", "table", "inserted"),
            ("updated", "table", "updated"),
            ("batches", "server", "batches"),
            ("sampled bytes", "server", "sampled_bytes"),
        ):
            self.averages[name].observe(self.now, self.server.total(part, count))
        if not self.history or self.now >= self.history[-1][0] + HISTORY_SECONDS:
            self.history.append((self.now, {name: meter.rate(self.now) for name, meter in self.rates.items()}))

    def recent(self, name: str) -> Histogram:
        """Latencies of the last seconds."""
        merged, entries = Histogram(), self._recent.get(name, deque())
        while entries and self.now - entries[0][0] > RECENT_SECONDS:
            entries.popleft()
        for _, histogram in entries:
            merged.merge(histogram)
        return merged
