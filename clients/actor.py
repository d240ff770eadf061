"""Actors: streams of steps into a store, one per environment; the tables' windows make the items.

Source: docs/semantics.md 2 (steps, streams, items, edges) and 6 (waiting).
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, first_slice, lib, wait_slices
from netreplay.clients.acknowledged import Acknowledgements
from netreplay.clients.arguments import seconds, shown, whole
from netreplay.clients.handle import Handle, remaining
from netreplay.clients.losses import announce
from netreplay.clients.priorities import Priority, staged_priorities
from netreplay.clients.reasons import stream_refusal
from netreplay.clients.staging import Stage, refuse_columns
from netreplay.errors import (
    BadCountError,
    Closed,
    ColumnError,
    NoStoreError,
    Status,
    Timeout,
    TooManyError,
)
from netreplay.layout import item_columns
from netreplay.spec import Window

CLOSE_SECONDS = 0.8
"""how long close() waits for acknowledgements"""
_AUTORESET = {None: "NONE", "next_step": "NEXT_STEP", "same_step": "SAME_STEP"}


class ActorCounters(NamedTuple):
    """What an actor has done so far."""

    steps: int
    """steps staged and committed, observation-only ones included"""
    items: int
    """items formed, over all tables"""
    acknowledged: int
    """items that the server stored"""
    refused: int
    """items that the server refused"""
    episodes: int
    """episodes ended"""
    truncated_dropped: int
    """anchors that made no item: truncated with n below the stack, or an episode's end that end = "drop" left out"""
    lost: int
    """acknowledged items that a restarted server no longer has"""
    reconnects: int
    """sessions beyond the first"""
    streams_replaced: int
    """streams that the server had given up, taken up under new ids"""


def fill_former(former: Any, table: int, window: Window) -> None:
    """`struct nr_former_config` of a table's window."""
    former.table, former.stack, former.n = table, window.stack, window.reach
    former.kind = lib.NR_WINDOW_SEQUENCE if window.sequential else lib.NR_WINDOW_NSTEP
    former.gamma = window.gamma
    former.stride, former.start = window.advance, window.start
    former.end = getattr(lib, f"NR_END_{window.end.upper()}")
    for name, _, offset in item_columns(window).columns:
        setattr(former, f"{name}_offset", offset)


class Actor:
    """Made by `replay.actor(...)`. One thread at a time; close() from any."""

    def __init__(
        self,
        handle: Handle,
        store: str,
        *,
        num_envs: int = 1,
        autoreset: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._ptr: Any = None
        self._handle = handle
        plan = handle.plan
        if not isinstance(store, str) or store not in plan.store_index:
            known = ", ".join(plan.store_index)
            raise NoStoreError(f"store {shown(store)}: the server has no such store; it has: {known}", value=store)
        num_envs = whole(num_envs, "num_envs", 1, 2**20)
        self.timeout = handle.timeout if timeout is None else seconds(timeout)
        streams = plan.spec.stores[store].streams
        if streams is not None and num_envs > streams:
            raise TooManyError(
                f"num_envs: {num_envs} is above the {streams} streams of store {store!r}; "
                f"raise store.{store}.streams in the server's config",
                value=num_envs,
            )
        if not isinstance(autoreset, str | None) or autoreset not in _AUTORESET:
            raise ColumnError(
                f"autoreset: {shown(autoreset)} is not one of None, 'next_step', 'same_step'",
                column="autoreset",
                value=autoreset,
            )
        if num_envs > 1 and autoreset is None:
            raise ColumnError(
                f"autoreset: {num_envs} environments need 'next_step' (Gymnasium's default: the row after a "
                "done row only resets) or 'same_step' (final observations come as final=)",
                column="autoreset",
                value=None,
            )
        self.store = store
        self.num_envs = num_envs
        self.autoreset = autoreset
        self._stage = Stage(store, plan.steps[store], num_envs)
        self._tables = [name for name, table in plan.spec.tables.items() if table.store == store]
        self._writers = self._stage.writers
        self._columns = len(self._writers)
        self._rows = self._stage.rows
        self._results = self._stage.results
        self._binding = ffi.new("struct nr_binding *")
        self._first_wait = first_slice(self.timeout)
        self._end_mask = ffi.new("uint8_t[]", [1] * num_envs)
        self._lock = threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._alive = threading.RLock()  # held for moments only: `_ptr` is freed by nobody meanwhile
        self._staged = False
        self._acknowledged = Acknowledgements(handle, store, self._binding)
        self._same_step = autoreset == "same_step"
        handle.retain()
        try:
            self._ptr = self._open()
        except BaseException:
            handle.release()
            raise
        handle.actors.add(self)

    def _open(self) -> Any:
        plan, layout = self._handle.plan, self._stage.layout
        columns = [*layout.observation, *layout.action]
        offsets = ffi.new("uint32_t[]", [c.offset for c in columns])
        sizes = ffi.new("uint32_t[]", [c.bytes for c in columns])
        formers = ffi.new("struct nr_former_config[]", max(1, len(self._tables)))
        for former, name in zip(formers, self._tables, strict=False):
            fill_former(former, plan.table_index[name], plan.spec.tables[name].window)
        config = ffi.new("struct nr_actor_config *")
        config.store, config.streams = plan.store_index[self.store], self.num_envs
        config.autoreset = getattr(lib, f"NR_AUTORESET_{_AUTORESET[self.autoreset]}")
        config.column_count, config.observation_columns = len(columns), len(layout.observation)
        config.former_count, config.formers = len(self._tables), formers
        config.column_offset, config.column_bytes = offsets, sizes
        for name in ("reward", "terminated", "truncated"):
            setattr(config, f"{name}_offset", layout.column(name).offset)
        status = ffi.new("int *")
        actor = lib.nr_actor_open(self._handle.ptr, config, status)
        if actor == ffi.NULL:
            self._fail_status(status[0] or int(lib.NR_NO_MEMORY), f"actor of store {self.store!r}")
        if self._handle.version:
            lib.nr_actor_version(actor, self._handle.version)
        return actor

    # ---- adding ----

    def append(
        self,
        *,
        reward: Any,
        terminated: Any,
        truncated: Any,
        priority: Priority = None,
        final: Any = None,
        final_mask: Any = None,
        **columns: Any,
    ) -> None:
        """Adds one step to every stream: an observation, the action taken in it, and that action's result.

        One environment: each column [*shape], reward a number. N environments: each column [N, *shape], reward [N]. The
        reward is float32; terminated and truncated are bools. A value that does not fit its column, a missing or
        unknown column is a ColumnError, and then no row of the call is taken.

        `priority` is that of the items that this call completes: None (the largest in the table), a number, an array
        [N], a callable given the items' fields (dict of arrays, with "row" the environment of each) that returns one
        each, or a dict of these by table. `final` and `final_mask` [N] are SAME_STEP's final observations: an array
        [N, *shape] or a list with None where there is none; a dict of these by column where there are several.

        Returns as soon as the client holds the rows; waits for credits only, at most `timeout` seconds (Timeout).
        """
        self._acquire()
        try:
            # Looked at inside: a close() from another thread may have held the lock until now.
            if self._ptr is None or self._staged:
                self._refuse()
            if len(columns) != self._columns:
                refuse_columns(self.store, columns, self._writers)
            try:
                for name, write in self._writers:
                    write(columns[name])
            except KeyError:
                refuse_columns(self.store, columns, self._writers)
                raise
            self._results(reward, terminated, truncated)
            if self._same_step or final is not None:
                self._take_final(final, final_mask)
            if priority is None:
                status = lib.nr_binding_append(self._ptr, self._rows, self._first_wait, self._binding)
                if status:
                    self._continue(status)
            else:
                self._append_with(priority, ffi.NULL)
        finally:
            self._release()

    def end(self, *, priority: Priority = None, **observation: Any) -> None:
        """Ends the episode of a single environment with its final observation, after the row that was done."""
        if self.num_envs > 1:
            raise BadCountError(
                f"end() is for one environment; with {self.num_envs} the autoreset mode {self.autoreset!r} says how "
                "episodes end"
            )
        with self._lock:
            if self._ptr is None or self._staged:
                self._refuse()
            writers = self._stage.observation_writers
            if len(observation) != len(writers) or any(name not in observation for name, _ in writers):
                refuse_columns(self.store, observation, writers)
            for name, write in writers:
                write(observation[name])
            self._stage.clear_results()
            self._stage.clear_final()
            self._append_with(priority, self._end_mask)

    def _take_final(self, final: Any, mask: Any) -> None:
        if final is None:
            self._stage.clear_final()
        elif not self._same_step or self.num_envs == 1:
            raise ColumnError(
                "final: is for several environments with autoreset='same_step'; one environment ends with end()",
                column="final",
                value=final,
            )
        else:
            self._stage.write_final(final, mask)

    def _wait_stage(self, status: int, stage: Callable[[int], int]) -> int:
        """Repeats a stage that found no credits in its first slice."""
        if status != Status.PENDING:
            return status

        def step(wait_ns: int) -> int:
            return int(lib.NR_CLOSED) if self._acknowledged.closing else stage(wait_ns)

        return wait_slices(step, self.timeout, self._explain_append, begin=time.monotonic() - self._first_wait / 1e9)

    def _explain_append(self, seconds: float) -> Timeout:
        blocked = ffi.new("struct nr_blocked *")
        lib.nr_replay_blocked(self._handle.ptr, blocked)
        return self._handle.explain(f"append to store {self.store!r}", blocked, seconds)

    def _continue(self, status: int) -> None:
        """The rarer ends of an append: it had to wait, something was lost, a row was refused."""
        status = self._wait_stage(
            status, lambda wait_ns: int(lib.nr_binding_append(self._ptr, self._rows, wait_ns, self._binding))
        )
        if status == lib.NR_BINDING_LOSS:
            announce(self._handle, stacklevel=4)
        elif status:
            self._fail(status)

    def _append_with(self, priority: Priority, end_mask: Any) -> None:
        items, row = ffi.addressof(self._binding, "items"), ffi.addressof(self._binding, "row")

        def stage(wait_ns: int) -> int:
            return int(lib.nr_actor_stage(self._ptr, self._rows, end_mask, wait_ns, items, row))

        status = self._wait_stage(stage(self._first_wait), stage)
        if status:
            self._fail(status)
        pointer = ffi.NULL
        self._staged = True
        try:
            count = int(items[0])
            if priority is not None and count:
                values = staged_priorities(self._ptr, self._handle.plan, count, self.num_envs, priority)
                self._acknowledged.remember(self._acknowledged.formed(self._ptr), values)
                pointer = ffi.from_buffer("double[]", values)
        except BaseException:
            lib.nr_actor_rollback(self._ptr)
            raise
        finally:
            self._staged = False
        status = lib.nr_actor_commit(self._ptr, pointer)
        if status:
            lib.nr_actor_rollback(self._ptr)
            self._fail(status)

    def _fail(self, status: int) -> None:
        what = f"append to store {self.store!r}"
        if status == Status.BAD_COUNT:
            row = int(self._binding.row)
            why = {
                None: "a row after a done row must be end(...), and end(...) only follows a done row",
                "next_step": "the row contradicts autoreset='next_step'",
                "same_step": "a done row needs a final observation (final=), and only a done row may have one",
            }[self.autoreset]
            raise BadCountError(f"{what}, row {row}: {why}", row=row)
        self._fail_status(status, what)

    def _fail_status(self, status: int, what: str) -> None:
        refusal = stream_refusal(status, what, self.store, self._handle.plan.spec.stores[self.store].streams or 0)
        if refusal is not None:
            raise refusal
        self._handle.fail(status, what)

    # ---- acknowledgements ----

    def flush(self, timeout: float | None = None) -> NDArray[np.int64]:
        """Waits until every item formed so far is stored or refused; their keys in the order formed, int64 [items].

        The order is that of calls, in a call that of rows, then anchors, then tables. Covers what was formed since
        the last flush. -1 stands for an item that is stored, but whose key was lost with a session: it can be drawn
        like any other, and its batch then names its key.

        ItemsRefused when the server refused some: it names them and holds all keys. TooManyError or another error with
        `field` store.NAME.streams, and `keys`, when the server has no place for the actor's streams. Timeout says why
        it waits.
        """
        limit = self.timeout if timeout is None else seconds(timeout)
        self._acquire()
        try:
            if self._ptr is None or self._staged:
                self._refuse()
            return self._acknowledged.flush(self._ptr, limit)
        finally:
            self._release()

    def counters(self) -> ActorCounters:
        """What this actor has done so far."""
        with self._lock:
            if self._ptr is None:
                self._refuse()
            counters = ffi.new("struct nr_actor_counters *")
            lib.nr_actor_counters(self._ptr, counters)
            return ActorCounters(*(int(getattr(counters, name)) for name in ActorCounters._fields))

    def set_version(self, version: int) -> None:
        """The `version` of items formed from now on; `parameters.fetch` calls it."""
        with self._alive:  # not the lock of append and flush, which may wait for the server
            if self._ptr is not None:
                lib.nr_actor_version(self._ptr, version)

    # ---- ending ----

    def close(self, timeout: float = CLOSE_SECONDS) -> None:
        """Waits at most `timeout` seconds for acknowledgements, then ends the streams; from any thread, more than once.

        Raises, when all is closed, what flush() would: Timeout when something may not have been stored, ItemsRefused.
        """
        timeout = seconds(timeout)
        if self._ptr is None:
            return
        begin = time.monotonic()
        if not self._lock.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            self._acknowledged.closing = True  # whoever is inside returns within a slice
            self._lock.acquire()
        try:
            if self._ptr is None:
                return
            try:
                if not self._acknowledged.closing and self._handle.dead is None and self._acknowledged.open(self._ptr):
                    self._acknowledged.flush(self._ptr, remaining(timeout, begin))
            finally:
                self._free()
        finally:
            self._lock.release()

    def _free(self) -> None:
        with self._alive:
            ptr, self._ptr = self._ptr, None
        if ptr is not None:
            lib.nr_actor_close(ptr)
            self._handle.actors.discard(self)
            self._handle.release()

    def _forked(self) -> None:
        """In a forked child: nothing of the parent's is touched again."""
        self._ptr = None
        self._lock, self._alive = threading.RLock(), threading.RLock()
        self._acquire, self._release = self._lock.acquire, self._lock.release

    def _refuse(self) -> None:
        if self._staged:
            raise BadCountError("an actor cannot be used from within its own priority callable")
        if self._handle.dead is not None:
            self._handle.refuse()
        raise Closed(f"the actor of store {self.store!r} is closed")

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def __del__(self) -> None:
        if getattr(self, "_ptr", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._free()

    def __repr__(self) -> str:
        state = "closed " if self._ptr is None else ""
        return f"<{state}actor of {self.store!r}, {self.num_envs} environments, {self._handle.address}>"
