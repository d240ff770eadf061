"""A memory to measure: filled with random steps that its own spec describes, and the calls to measure on it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, lib
from netreplay.clients.batch import Batch
from netreplay.clients.replay import Replay
from netreplay.errors import BadConfigError, NoTableError
from netreplay.spec import ColumnSpec, Spec, StoreSpec

OPERATIONS = ("ping", "insert", "sample", "update")
DEFAULT_FILL = 10_000
"""items"""
_POOL_BYTES = 16 * 2**20  # of different steps
_POOL_STEPS = 4096
_DRAWN_BYTES = 64 * 2**20  # at most, of the rows whose keys one block of updates takes
_FLUSHED = 1024  # steps between two looks at the keys while filling


@dataclass(frozen=True)
class Sizes:
    """Of the calls and of the table."""

    batch: int
    """rows of a sample"""
    update_batch: int
    """keys of an update, at most the items there are"""
    fill: int | None
    """items to put in; None: DEFAULT_FILL, or the capacity if that is less"""


def random_values(column: ColumnSpec, count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Values that fit a column, [count, *shape]."""
    shape = (count, *column.shape)
    if column.type.bits:
        return rng.standard_normal(shape, np.float32)
    dtype = column.type.numpy
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if dtype.kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "mM":
        return rng.integers(0, 2**40, shape).view(dtype)
    return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def random_steps(store: StoreSpec, step_bytes: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Steps of a store, as `append` takes them: as many as 16 MiB hold, at least 2, at most 4,096."""
    count = max(2, min(_POOL_STEPS, _POOL_BYTES // max(1, step_bytes)))
    columns = {
        name: random_values(column, count, rng) for name, column in {**store.observation, **store.action}.items()
    }
    rewards = rng.standard_normal(count)
    return [
        {name: values[i] for name, values in columns.items()}
        | {"reward": float(rewards[i]), "terminated": False, "truncated": False}
        for i in range(count)
    ]


def table_of(spec: Spec, name: str | None, url: str) -> str:
    """The table to use: the one named, or the first."""
    if name is None:
        return next(iter(spec.tables))
    if name not in spec.tables:
        known = ", ".join(spec.tables)
        raise NoTableError(f"--table: {url} has no table {name!r}; it has: {known}", value=name)
    return name


class Subject:
    """One memory, by the label that the report gives it."""

    def __init__(self, replay: Replay, label: str, table: str, sizes: Sizes, seed: int = 1) -> None:
        self.replay, self.label, self.table, self.url = replay, label, table, replay.url
        spec = replay.spec
        self.spec = spec.tables[table]
        self.store = self.spec.store
        plan = replay._handle.plan
        self.step_bytes = plan.steps[self.store].step_bytes
        self.row_bytes = plan.rows[table].row_bytes
        self.batch = sizes.batch
        self.update_batch = sizes.update_batch
        self.items = 0
        """in the table, once filled"""
        self._rng = np.random.default_rng(seed)
        self._sizes = sizes
        self._steps = itertools.cycle(random_steps(spec.stores[self.store], self.step_bytes, self._rng))
        self._counters = ffi.new("struct nr_replay_counters *")
        self._answer = ffi.new("struct nr_ping *")

    def used(self) -> int:
        """Items that are, or were, in the table."""
        info = self.replay.table(self.table).info()
        return max(info.size, info.inserted)

    @property
    def target(self) -> int:
        """Items that the table shall hold before anything is measured."""
        sizes, capacity = self._sizes, self.spec.capacity
        least = max(2 * sizes.batch, self.spec.min_size)
        return min(capacity, max(least, DEFAULT_FILL if sizes.fill is None else sizes.fill))

    def fill(self, progress: Callable[[int], object]) -> None:
        """Puts in what is missing, as one long episode; opens what the calls need."""
        self._actor = self.replay.actor(self.store)
        present = self.replay.table(self.table).info().size
        # The first item comes with the last step of its window.
        window = self.spec.window
        steps = max(0, self.target - present) * window.advance + window.reach + window.start
        for first in range(0, steps, _FLUSHED):
            for _ in range(min(_FLUSHED, steps - first)):
                self._actor.append(**next(self._steps))
            self._actor.flush()
            progress(present + first)
        self.items = self.replay.table(self.table).info().size
        if self.items < max(1, self.spec.min_size):
            raise BadConfigError(
                f"--table: table {self.table!r} of {self.url} holds {self.items} items after {steps} steps, and "
                f"nothing is drawn below its min_size of {self.spec.min_size}"
            )
        self.update_batch = min(self._sizes.update_batch, self.items)
        self._learner = self.replay.learner(self.table, batch_size=self.batch, timeout=self.replay._handle.timeout)
        self._wide = self.replay.learner(self.table, batch_size=self.update_batch, timeout=self.replay._handle.timeout)

    def size(self, operation: str) -> str:
        """What one call of an operation is about."""
        return {
            "ping": "1 datagram",
            "insert": "append + flush of 1 step",
            "sample": f"batch of {self.batch}",
            "update": f"batch of {self.update_batch}",
        }[operation]

    # ---- the calls ----

    def prepare(self, operation: str, rounds: int) -> tuple[Callable[[Any], object], list[Any]]:
        """A call, and its argument for every round: fresh steps; keys that were just drawn, and new priorities."""
        if operation == "ping":
            return self._ping, [0] * rounds
        if operation == "sample":
            return self._sample, [None] * rounds
        if operation == "insert":
            return self._insert, [next(self._steps) for _ in range(rounds)]
        keys = self._draw_keys(rounds)
        priorities = self._rng.uniform(0.01, 3.0, (rounds, self.update_batch))
        return self._update, list(zip(keys, priorities, strict=True))

    def _draw_keys(self, rounds: int) -> list[NDArray[np.int64]]:
        """A draw of its own for each update; beyond 64 MiB of rows, keys of those draws mixed."""
        draws = max(1, min(rounds, _DRAWN_BYTES // (self.update_batch * self.row_bytes)))
        drawn = [self._wide.sample().keys for _ in range(draws)]
        if draws == rounds:
            return drawn
        every = np.concatenate(drawn)
        return drawn + [self._rng.choice(every, self.update_batch) for _ in range(rounds - draws)]

    def _ping(self, _payload: int) -> None:
        # Without what Replay.ping asks first: here the way there is measured.
        self.replay._handle.call("ping", self._start_ping)

    def _start_ping(self, replay: Any, wait_ns: int, operation: Any) -> int:
        return int(lib.nr_ping(replay, 0, self._answer, wait_ns, operation))

    def _insert(self, step: dict[str, Any]) -> None:
        self._actor.append(**step)
        self._actor.flush()

    def _sample(self, _none: None) -> Batch:
        return self._learner.sample()

    def _update(self, argument: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
        self._wide.update_priorities(*argument)

    def answers(self) -> tuple[int, int]:
        """answer_ns and serving_ns of Counters, for less than all of them would cost."""
        with self.replay._handle as replay:
            lib.nr_replay_counters(replay, self._counters)
        return self._counters.answer_ns, self._counters.serving_ns
