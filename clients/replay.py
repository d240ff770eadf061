"""A connection to a replay memory, behind the network or in this process. Source: docs/semantics.md 1, 6, 7."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
import warnings
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from netreplay._binding import ffi, lib, wait_slices
from netreplay._checkpoint import Restored, failure
from netreplay.clients.actor import CLOSE_SECONDS, Actor
from netreplay.clients.arguments import seconds, shown, whole
from netreplay.clients.handle import Handle, remaining
from netreplay.clients.learner import Learner
from netreplay.clients.limits import Limits, configure, limits_of
from netreplay.clients.looking import Found, Histograms, get, histograms
from netreplay.clients.losses import Loss, announce
from netreplay.clients.parameters import Parameters
from netreplay.clients.updating import DeleteResult, Updater
from netreplay.errors import CheckpointError, NetreplayError, NoTableError, NotPicklableError, Timeout
from netreplay.spec import Spec

logger = logging.getLogger("netreplay")
_HEADER_BYTES = 48  # of every datagram: struct nr_header in dpdk_ext/protocol/wire.h
_ALWAYS_FITS = 1000  # bytes of payload that a datagram of any session takes
_MOST_PAYLOAD = 2**32 - 1  # of a ping that sends nothing
_open_replays: weakref.WeakSet[Replay] = weakref.WeakSet()


class TableInfo(NamedTuple):
    """A table's numbers. Leaves are in units of 2^-24 of a weight (priority to the exponent)."""

    name: str
    size: int
    """items now"""
    capacity: int
    """items at most"""
    min_size: int
    """items before anything is drawn"""
    inserted: int
    """items since the last reset; the next two count from there too"""
    sampled: int
    """draws committed"""
    reserved: int
    """draws on their way: requested and not taken yet"""
    updated: int
    stale: int
    """updates and deletions whose item had left"""
    refused: int
    """items and updates refused"""
    evicted_capacity: int
    """items removed because the table was full"""
    evicted_steps: int
    """items removed because its store had no step free"""
    evicted_deleted: int
    """items removed by delete()"""
    evicted_reset: int
    """items removed by reset()"""
    evicted_age: int
    """items removed because they were older than max_age"""
    evicted_version: int
    """items removed because they were more than max_lag publications behind"""
    max_age_ns: int
    """limits in force, as are the next five: `limits` shows them better"""
    samples_per_insert: float
    least: float
    most: float
    max_sampled: int
    versions: int
    evicted_sampled: int
    """items removed because they were sampled `max_sampled` times"""
    saturated: int
    """priorities cut to the largest or raised to the least leaf"""
    leased: int
    """drawn items held now"""
    total: int
    """sum of the leaves"""
    max_leaf: int
    min_leaf: int
    """least positive leaf"""
    max_priority: float
    """largest raw priority, the default of new items; 0 when empty, and the default is 1.0 then"""
    steps: int
    """steps of its store in use"""
    steps_capacity: int
    item_bytes_held: int
    """bytes of its items' records"""
    step_bytes_held: int
    """bytes of its store's steps in use"""

    @property
    def limits(self) -> Limits:
        """the limits in force"""
        return limits_of(self)

    @property
    def replay_ratio(self) -> float:
        """draws committed for each item inserted; 0.0 before the first"""
        return self.sampled / self.inserted if self.inserted else 0.0

    @property
    def evicted(self) -> int:
        """items removed, for whatever reason"""
        return sum(getattr(self, name) for name in self._fields if name.startswith("evicted_"))


class Ping(NamedTuple):
    """One round trip."""

    round_trip: float
    """seconds"""
    server: float
    """seconds of it between the server's receive and send stamps; 0 for local:"""


class Counters(NamedTuple):
    """What a connection has done."""

    datagrams_sent: int
    datagrams_received: int
    bytes_sent: int
    bytes_received: int
    retransmissions: int
    round_trips: int
    stalls: int
    """appends that waited for credits"""
    answers: int
    """datagrams that answered a request, those of settlements apart; 0 for local:, as are the two that follow"""
    answer_ns: int
    """from a request's first datagram to each of its answers; moments of several requests count once"""
    serving_ns: int
    """of it, between the server's receive and send stamps; moments of several answers count once"""
    smoothed_round_trip_ns: int
    least_round_trip_ns: int
    reconnects: int
    """sessions beyond the first"""
    incarnation: int
    """of the server; another one after a restart"""
    window: int
    credits: int
    """datagrams that may be in flight"""
    max_datagram: int
    """bytes of UDP payload"""


class Table:
    """One table: to look at, and to change while it is in use."""

    def __init__(self, replay: Replay, name: str) -> None:
        self._replay, self.name = replay, name
        self.spec = replay.spec.tables[name]

    def info(self, timeout: float | None = None) -> TableInfo:
        """Its numbers now."""
        return self._replay.tables(timeout)[self.name]

    def configure(
        self,
        *,
        min_size: int | None = None,
        samples_per_insert: float | None = None,
        error_buffer: float | None = None,
        size: int | None = None,
        max_sampled: float | None = None,
        max_age: float | None = None,
        max_lag: float | None = None,
        timeout: float | None = None,
    ) -> Limits:
        """Changes limits of the live table, and returns those now in force. None: as it is.

        Calls that wait take notice at once. samples_per_insert 0 ends a ratio; one that is new wants error_buffer too.
        `size` is that of a queue or stack. math.inf for max_sampled, max_age (seconds) or max_lag: no limit. SpecError
        names the field and value that cannot be, BadLimitsError says that they contradict what is in force; then
        nothing is changed. What was inserted and sampled so far counts on: a ratio new to an old table may hold one
        side back until the other has caught up, or reset() is called. The change ends with the server.
        """
        wanted = {
            "min_size": min_size,
            "samples_per_insert": samples_per_insert,
            "error_buffer": error_buffer,
            "size": size,
            "max_sampled": max_sampled,
            "max_age": max_age,
            "max_lag": max_lag,
        }
        return configure(self._replay._handle, self.name, wanted, timeout)

    def delete(self, keys: Any, *, timeout: float | None = None) -> DeleteResult:
        """Lets items leave at once: keys int64 [n]. Per key: deleted; stale when the item had left before; superseded
        when the call names the key again later. A batch that holds an item keeps it whole.
        """
        handle = self._replay._handle
        limit = handle.timeout if timeout is None else seconds(timeout)
        with handle:
            return Updater(handle, self.name).delete(keys, limit, lambda: False)

    def reset(self, timeout: float | None = None) -> None:
        """Lets every item leave, and the limiter count anew; returns when it is done. All keys become stale; streams,
        parameters, the numbers of draws and their random state go on. Meanwhile inserts and draws wait.

        At a timeout (LeavingTimeout) it goes on nevertheless, once the request has arrived.
        """
        handle = self._replay._handle
        index = handle.plan.table_index[self.name]
        handle.call(
            f"reset of table {self.name!r}", lambda replay, wait, op: lib.nr_reset(replay, index, wait, op), timeout
        )

    def get(self, keys: Any, *, timeout: float | None = None, as_torch: bool = False) -> Found:
        """The items of these keys (int64 [n], as `batch.keys` and `flush()` give them), without drawing them.

        A batch of n rows in the keys' order, with `found`, bool [n]; a row whose item is not (any more) in the table is
        zeros. Nothing is counted as sampled and no limiter is asked. More than 128 keys are asked for in parts.
        """
        return get(self._replay._handle, self.name, keys, timeout, as_torch)

    def histograms(self, timeout: float | None = None) -> Histograms:
        """Its raw priorities, ages and times sampled, counted now, between other work: the table is never held up."""
        return histograms(self._replay._handle, self.name, timeout)

    def __repr__(self) -> str:
        return f"<table {self.name!r} of {self._replay.url}>"


class Replay:
    """Made by `netreplay.connect(...)`. From any thread. close() ends every blocked call within a second."""

    def __init__(self, handle: Handle, url: str, arguments: dict[str, Any]) -> None:
        self._handle = handle
        self._arguments = arguments
        self.url = url
        self.spec: Spec = handle.plan.spec
        """what the server holds, every size resolved"""
        self.parameters = Parameters(handle)
        """the set "default"; `parameters["x"]` is another"""
        self.restored: Restored | None = None
        """what a `restore=` brought back"""
        self._closed = False
        _open_replays.add(self)

    def actor(
        self, store: str, *, num_envs: int = 1, autoreset: str | None = None, timeout: float | None = None
    ) -> Actor:
        """An actor that feeds every table of the store; see Actor. NoStoreError names the stores there are."""
        self._check()
        return Actor(self._handle, store, num_envs=num_envs, autoreset=autoreset, timeout=timeout)

    def learner(
        self,
        table: str,
        *,
        batch_size: int,
        prefetch: int = 0,
        timeout: float | None = None,
        as_torch: bool = False,
    ) -> Learner:
        """An iterator of batches; see Learner. `timeout` None: for ever. NoTableError names those there are."""
        self._check()
        return Learner(
            self._handle, table, batch_size=batch_size, prefetch=prefetch, timeout=timeout, as_torch=as_torch
        )

    def table(self, name: str) -> Table:
        """One table; NoTableError names those there are."""
        if not isinstance(name, str) or name not in self.spec.tables:
            known = ", ".join(self.spec.tables)
            raise NoTableError(f"table {shown(name)}: the server has no such table; it has: {known}", value=name)
        return Table(self, name)

    def tables(self, timeout: float | None = None) -> dict[str, TableInfo]:
        """Every table's numbers now, by name."""
        names = self._handle.plan.table_names
        infos = ffi.new("struct nr_table_info[]", len(names))
        self._handle.call(
            "tables", lambda replay, wait, op: lib.nr_tables(replay, infos, len(names), wait, op), timeout
        )
        keys = TableInfo._fields[1:]
        return {
            name: TableInfo(name, *(getattr(info, key) for key in keys))
            for name, info in zip(names, infos, strict=True)
        }

    def ping(self, payload_bytes: int = 0, timeout: float | None = None) -> Ping:
        """One round trip with so many bytes of payload each way; BadCountError above what one datagram takes."""
        if type(payload_bytes) is not int or not 0 <= payload_bytes <= _ALWAYS_FITS:  # else no bound is worth a call
            local = self._handle.address.scheme == "local"
            most = _MOST_PAYLOAD if local else self.counters().max_datagram - _HEADER_BYTES
            payload_bytes = whole(payload_bytes, "payload_bytes", 0, most)
        ping = ffi.new("struct nr_ping *")
        self._handle.call("ping", lambda replay, wait, op: lib.nr_ping(replay, payload_bytes, ping, wait, op), timeout)
        return Ping(ping.round_trip_ns / 1e9, ping.server_ns / 1e9)

    def counters(self) -> Counters:
        """What this connection has done so far."""
        counters = ffi.new("struct nr_replay_counters *")
        with self._handle as replay:
            lib.nr_replay_counters(replay, counters)
        return Counters(*(int(getattr(counters, name)) for name in Counters._fields))

    def losses(self) -> list[Loss]:
        """Everything that restarts of the server have lost so far; also said by DataLossWarning as it is noticed."""
        announce(self._handle)
        return list(self._handle.losses)

    def checkpoint(self, path: str | Path, timeout: float | None = None) -> int:
        """Writes a checkpoint (local: only; a server writes its own) while other threads go on; its bytes.

        The file is replaced as a whole, or, on an error or timeout, left as it was: SystemRefusedError (`errno`,
        `path`) says what the system refused.
        """
        if self._handle.address.scheme != "local":
            raise CheckpointError(
                f"checkpoint: {self.url} is a server's, which writes its own: server.checkpoint in its config",
                path=os.fspath(path),
            )
        limit = math.inf if timeout is None else seconds(timeout)
        name, error = os.fspath(path), ffi.new("int *")
        progress = ffi.new("struct nr_checkpoint_progress *")

        def explain(waited: float) -> Timeout:
            done = f"{progress.bytes} of about {progress.estimate} bytes were written"
            return Timeout(f"checkpoint {name}: not written within {waited:g} s: {done}", path=name)

        with self._handle as replay:
            status = int(lib.nr_replay_checkpoint_begin(replay, os.fsencode(name), error))
            if status:
                raise self._not_written(name, status, error[0])
            status = wait_slices(
                lambda wait_ns: int(lib.nr_replay_checkpoint_wait(replay, wait_ns, progress)),
                limit,
                explain,
                lambda: lib.nr_replay_checkpoint_cancel(replay),
            )
            if status:
                raise self._not_written(name, status, progress.error)
        return int(progress.bytes)

    def _not_written(self, path: str, status: int, error: int) -> NetreplayError:
        if status == lib.NR_CLOSED and self._handle.dead is not None:
            self._handle.refuse()
        return failure(path, status, error)

    def close(self) -> None:
        """Closes actors (waiting up to 0.8 s for acknowledgements), learners, and the connection; more than once, any
        thread.

        Raises, when all is closed, the first error of an actor's close: what may not have been stored.
        """
        if self._closed:
            return
        self._closed = True
        _open_replays.discard(self)
        begin = time.monotonic()
        first: Exception | None = None
        for learner in list(self._handle.learners):
            learner._closing = True
        for actor in list(self._handle.actors):
            try:
                actor.close(remaining(CLOSE_SECONDS, begin))
            except Exception as error:
                first = first or error
        self._handle.close()
        for learner in list(self._handle.learners):
            learner.close()
        if first is not None:
            raise first

    def _check(self) -> None:
        if self._handle.dead is not None:
            self._handle.refuse()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._handle.address.scheme == "local":
            raise NotPicklableError(f"{self.url} lives in one process; another process needs a server and its address")
        from netreplay.clients.connect import reconnect

        return reconnect, (self.url, self._arguments)

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close()
        except Exception:
            if error is None:
                raise

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._handle.dead is None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            # Actors and learners that live on keep the connection.
            self._handle.release()

    def __repr__(self) -> str:
        return f"<{'closed ' if self._closed else ''}replay {self.url}: {', '.join(self.spec.tables)}>"


def _close_all() -> None:
    """At exit: what was accepted is given its 0.8 s."""
    for replay in list(_open_replays):
        if replay._handle.dead is None:
            try:
                replay.close()
            except NetreplayError as error:
                logger.error("%s was not closed, and at exit: %s", replay.url, error)


atexit.register(_close_all)
