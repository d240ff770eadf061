"""Learners: sampled batches, prefetched, and new priorities for them. Source: docs/semantics.md 3, 4, 6."""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from netreplay._binding import ffi, first_slice, lib, wait_slices
from netreplay.clients.arguments import seconds, shown, whole
from netreplay.clients.batch import Batch, Draws
from netreplay.clients.buffers import Pool
from netreplay.clients.handle import Handle, remaining
from netreplay.clients.limits import check_rows
from netreplay.clients.updating import Updater, UpdateResult
from netreplay.errors import BadCountError, Closed, NoTableError, Status, Timeout
from netreplay.spec import DISTINCT_SAMPLERS, WEIGHTED_SAMPLERS

MOST_ROWS = 2**20
"""of one batch, as the C takes them"""
MOST_BYTES = 2**32 - 1 - 48
"""of one draw's rows: offsets on the wire have 32 bits, and a message begins with its head"""
MOST_PARTS_AHEAD = 32
"""draws of up to 256 rows that one learner may want ahead: prefetch * ceil(batch_size / 256).

A session has 11 places for draws, 8 of them for what is fetched ahead. What does not fit waits in the client and is
drawn later: when a place is free, not when it was requested.
"""

_OK, _PENDING = int(Status.OK), int(Status.PENDING)
_PART = int(lib.NR_SAMPLE_PART)
_HEAD_BYTES = int(ffi.sizeof("struct nr_draw_head"))


class _Started(NamedTuple):
    """A sample on its way. Its memory is written to until the cell is empty: taken, or given up."""

    cell: Any
    memory: Any
    pointer: Any


class Learner:
    """Made by `replay.learner(...)`: an endless iterator of batches. One thread at a time; close() from any."""

    def __init__(
        self,
        handle: Handle,
        table: str,
        *,
        batch_size: int,
        prefetch: int = 0,
        timeout: float | None = None,
        as_torch: bool = False,
    ) -> None:
        self._open = False
        plan = handle.plan
        if not isinstance(table, str) or table not in plan.table_index:
            known = ", ".join(plan.table_index)
            raise NoTableError(f"table {shown(table)}: the server has no such table; it has: {known}", value=table)
        batch_size = whole(batch_size, "batch_size", 1, MOST_ROWS)
        prefetch = whole(prefetch, "prefetch", 0, 1024)
        spec = plan.spec.tables[table]
        most = min(_PART, spec.capacity)
        if spec.sampler in DISTINCT_SAMPLERS and batch_size > most:
            raise BadCountError(
                f"batch_size: {batch_size} is more than the {most} different items that one draw of the sampler "
                f"{spec.sampler} gives (table {table!r}: at most {_PART}, and its capacity is {spec.capacity})",
                field="batch_size",
                value=batch_size,
            )
        fits = MOST_PARTS_AHEAD // -(-batch_size // _PART)
        if handle.address.scheme != "local" and prefetch > fits:
            raise BadCountError(
                f"prefetch: {prefetch} batches of {batch_size} are more than one learner may want ahead "
                f"({MOST_PARTS_AHEAD} draws of {_PART}); the largest prefetch of this batch_size is {fits}",
                field="prefetch",
                value=prefetch,
            )
        check_rows(handle, table, batch_size)
        self._layout = plan.rows[table]
        drawn = min(batch_size, _PART) * self._layout.row_bytes
        if handle.address.scheme != "local" and drawn > MOST_BYTES:
            raise BadCountError(
                f"batch_size: {batch_size} makes draws of {drawn} bytes, and one may have {MOST_BYTES} "
                f"(rows of {self._layout.row_bytes})",
                field="batch_size",
                value=batch_size,
            )
        self.table = table
        self.batch_size = batch_size
        self.prefetch = prefetch
        self.as_torch = as_torch
        self.timeout = math.inf if timeout is None else seconds(timeout)
        self._handle = handle
        self._index = plan.table_index[table]
        self._dtype = self._layout.dtype
        self._prioritized = spec.sampler in WEIGHTED_SAMPLERS
        self._pool = Pool(batch_size * self._layout.row_bytes)
        self._started: deque[_Started] = deque()
        self._cell = ffi.new("struct nr_sample **")
        self._heads = ffi.new("struct nr_draw_head[]", -(-batch_size // _PART))
        self._parts = ffi.new("uint32_t *")
        self._updater = Updater(handle, table)
        self._lock = threading.RLock()
        self._closing = False
        handle.retain()
        self._open = True
        handle.learners.add(self)

    # ---- sampling ----

    def sample(self, timeout: float | None = None) -> Batch:
        """The next batch; with prefetch, drawn when it was requested, or later if no place was free then
        (MOST_PARTS_AHEAD). Taking it commits its draws.

        Waits at most `timeout` seconds (the learner's, by default for ever; after each 10 s the log says why) and then
        raises the Timeout that says why: LimiterTimeout, EmptyTimeout, LeasesTimeout, or no answer. 0 tries once.
        """
        limit = self.timeout if timeout is None else seconds(timeout)
        first_wait = first_slice(limit)
        begin = time.monotonic()
        with self._lock:
            # Looked at inside: a close() from another thread may have held the lock until now.
            if not self._open:
                self._refuse()
            status = _OK
            if self.prefetch == 0 and not self._started:
                memory, pointer = self._pool.take()
                cell = self._cell
                try:
                    status = lib.nr_binding_sample(
                        self._handle.ptr,
                        self._index,
                        self.batch_size,
                        pointer,
                        first_wait,
                        cell,
                        self._heads,
                        self._parts,
                    )
                    if status == _OK:
                        return self._batch(memory)
                    if not cell[0]:
                        self._handle.fail(status, f"sample of table {self.table!r}")
                    self._cell = ffi.new("struct nr_sample **")
                    self._started.append(_Started(cell, memory, pointer))
                except BaseException:  # Ctrl-C, seen when the call returns
                    lib.nr_binding_give_up(cell)
                    raise
            while True:
                while len(self._started) <= self.prefetch:
                    self._start()
                first = self._started[0]
                if not first.cell[0]:  # Ctrl-C came as it was taken
                    self._started.popleft()
                    continue
                if status != _PENDING:  # else the first slice is over
                    status = lib.nr_binding_take(first.cell, first_wait, self._heads, self._parts)
                if status == _PENDING:
                    status = self._wait(first, limit, begin)
                if status:
                    lib.nr_binding_give_up(first.cell)
                self._started.popleft()
                first_wait = 0  # it is over, as often as the lease of one drawn ahead has run out
                if status == _OK:
                    return self._batch(first.memory)
                if status != Status.LEASE_EXPIRED:
                    self._handle.fail(status, f"sample of table {self.table!r}")

    def _batch(self, memory: Any) -> Batch:
        heads = ffi.buffer(self._heads, self._parts[0] * _HEAD_BYTES)[:]
        rows = np.ndarray((self.batch_size,), self._dtype, memory)
        return Batch(rows, self._layout, Draws(heads, _PART, self._prioritized), self.as_torch)

    def _start(self) -> None:
        memory, pointer = self._pool.take()
        started = _Started(ffi.new("struct nr_sample **"), memory, pointer)
        self._started.append(started)
        status = lib.nr_sample_start(self._handle.ptr, self._index, self.batch_size, pointer, started.cell)
        if status != _OK:
            self._started.pop()
            self._handle.fail(status, f"sample of table {self.table!r}")

    def _wait(self, started: _Started, limit: float, begin: float) -> int:
        def explain(seconds: float) -> Timeout:
            blocked = ffi.new("struct nr_blocked *")
            lib.nr_sample_blocked(started.cell[0], blocked)
            return self._handle.explain(f"sample of {self.batch_size} from table {self.table!r}", blocked, seconds)

        def step(wait_ns: int) -> int:
            return int(
                lib.NR_CLOSED if self._closing else lib.nr_binding_take(started.cell, wait_ns, self._heads, self._parts)
            )

        def give_up() -> None:
            # Without prefetch a batch is drawn when it is asked for, so the next call draws anew.
            if self.prefetch == 0:
                self._cancel()

        return wait_slices(step, limit, explain, give_up, begin)

    def _cancel(self) -> None:
        while self._started:
            lib.nr_binding_give_up(self._started[0].cell)
            self._started.popleft()  # and with it the memory, no sooner

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.sample()

    # ---- priorities ----

    def update_priorities(
        self, keys: Any, priorities: Any, *, delete: Any = None, timeout: float | None = None
    ) -> UpdateResult:
        """Sets raw priorities: keys int64 [n] (as batch.keys), priorities [n] finite and >= 0; arrays, tensors,
        sequences.

        Per key: applied; stale when its item has left the table; refused when the priority is NaN, infinite or
        negative; superseded when the call names the key again later. One bad value harms no other. When all are set,
        the items of the keys in `delete` leave the table; see Table.delete.
        """
        limit = self._handle.timeout if timeout is None else seconds(timeout)
        with self._lock:
            if not self._open:
                self._refuse()
            begin = time.monotonic()
            result = self._updater.update(keys, priorities, limit, lambda: self._closing)
            if delete is None:
                return result
            deleted = self._updater.delete(delete, remaining(limit, begin), lambda: self._closing)
            return result._replace(deleted=deleted)

    # ---- ending ----

    def close(self) -> None:
        """Gives prefetched batches back untaken; from any thread, more than once."""
        if not self._open:
            return
        self._closing = True
        with self._lock:
            if self._open:
                self._open = False
                self._cancel()
                self._handle.learners.discard(self)
                self._handle.release()

    def _forked(self) -> None:
        """In a forked child: nothing of the parent's is touched again."""
        self._open = False
        self._started.clear()
        self._lock = threading.RLock()

    def _refuse(self) -> None:
        if self._handle.dead is not None:
            self._handle.refuse()
        raise Closed(f"the learner of table {self.table!r} is closed")

    def __enter__(self) -> Learner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            if self._started:
                warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self.close()

    def __repr__(self) -> str:
        state = "" if self._open else "closed "
        return f"<{state}learner of {self.table!r}, batches of {self.batch_size}, {self._handle.address}>"
