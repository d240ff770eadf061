"""A server in this process: engine, protocol and packet I/O, run by a thread of the C."""

from __future__ import annotations

import errno
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from netreplay._binding import check, ffi, lib
from netreplay._checkpoint import Restored, failure, restore
from netreplay._engine import Plan, create, plan
from netreplay.address import Address
from netreplay.appliance.config import ServerConfig
from netreplay.appliance.eal import start
from netreplay.appliance.filters import Filters
from netreplay.appliance.port import PortInfo, open_port, slab_of
from netreplay.clients.replay import TableInfo
from netreplay.errors import (
    BadAddressError,
    BadConfigError,
    Closed,
    NetreplayError,
    SystemRefusedError,
    Timeout,
    error_for,
)
from netreplay.spec import Spec

logger = logging.getLogger("netreplay")
_SLICE = 0.1
"""seconds that a signal waits at most for its handler"""
_LOOK = 0.02
"""seconds between two looks at whether a checkpoint is written"""
_WAYS_OUT = {  # by errno
    errno.EADDRINUSE: "another process listens there: stop it, or choose another port (0 takes any free one)",
    errno.EACCES: "no permission: ports below 1024 need root; choose a higher one",
    errno.EPERM: "no permission: a rule of this machine forbids it",
    errno.EADDRNOTAVAIL: "this machine has no such address: `ip address` shows those it has; 0.0.0.0 takes all",
    errno.EAFNOSUPPORT: "this machine has no such address family: IPv6 may be off",
}

_VHOST_WAYS_OUT = {  # by errno
    errno.EADDRINUSE: "a server answers at this socket, or the file is no socket: stop it, or choose another path",
    errno.EACCES: "no permission to make a file there: choose a folder that this user may write to",
    errno.ENOENT: "no such folder: make it, or choose another path",
    errno.EROFS: "nothing can be written there: choose another folder",
}


class ServerCounters(NamedTuple):
    """What the loop has done, as struct nr_appliance_counters."""

    polls: int
    empty_polls: int
    busy_ns: int
    idle_ns: int
    datagrams_in: int
    datagrams_out: int
    bytes_in: int
    bytes_out: int
    dropped_out: int
    malformed: int
    bad_version: int
    no_session: int
    wrong_peer: int
    refused: int
    duplicates: int
    sessions_open: int
    sessions_opened: int
    sessions_swept: int
    streams_open: int
    sessions_bytes: int
    longest_quantum_ns: int
    batches: int
    """SAMPLE requests answered in full"""
    sampled_bytes: int
    """bytes of rows sent, first time and again"""
    inserts: int
    updates: int
    publishes: int
    fetches: int
    pings: int


class CheckpointProgress(NamedTuple):
    """How far the running, or the last, checkpoint is."""

    running: bool
    bytes: int
    """written so far"""
    estimate: int
    """bytes of the whole, reckoned at its start; 0 until then"""
    items: int
    """of all tables, so far"""
    seconds: float
    """since it was asked for"""
    longest_quantum: float
    """seconds that the loop worked at it in one go at most"""


def way_out(system_error: int) -> str:
    """Why the system refuses an address to listen on, and what to do."""
    return f"{os.strerror(system_error)}; {_WAYS_OUT.get(system_error, 'see the system message')}"


def _check_path(path: Path) -> None:
    """BadConfigError when no checkpoint could be written there: better told at the start than at the first one."""
    folder, field = path.parent, "server.checkpoint.path"
    if path.exists() and not path.is_file():
        raise BadConfigError(f"{field}: {path} is not a regular file", field=field, value=str(path))
    if not folder.is_dir():
        raise BadConfigError(f"{field}: {folder} is not a folder that is there", field=field, value=str(path))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise BadConfigError(f"{field}: {folder} may not be written to", field=field, value=str(path))


def _appliance_config(config: ServerConfig) -> Any:
    made = ffi.new("struct nr_appliance_config *")
    made.sessions, made.busy = config.sessions, config.poll == "busy"
    made.session_ns, made.max_datagram = int(config.session_timeout * 1e9), config.max_datagram
    return made


def _cannot_listen(address: Address, error: int) -> NetreplayError:
    """`error`: of the C, a negative errno."""
    where = address.peer
    if error == -errno.ENOMEM:
        return error_for(lib.NR_NO_MEMORY, f"{where}: cannot listen")
    if address.scheme == "udp" and error in (-errno.ENOENT, -errno.EAGAIN, -errno.EINVAL):
        return BadAddressError(f"{where}: no such address or name to listen on", value=where)
    reason = _VHOST_WAYS_OUT.get(-error) if address.scheme == "vhost" else None
    text = way_out(-error) if reason is None else f"{os.strerror(-error)}; {reason}"
    refused = SystemRefusedError(f"{where}: cannot listen: {text}")
    refused.errno = -error
    return refused


def _listen(address: Address, config: ServerConfig) -> tuple[Any, Address]:
    """A packet I/O that listens, and the address that it got."""
    error, bound = ffi.new("int *"), ffi.new("uint16_t *")
    if address.scheme == "vhost":
        path = ffi.new("char[]", os.fsencode(address.path))
        io = lib.nr_binding_listen_vhost(path, config.vhost_mode, config.vhost_clients, config.max_datagram, error)
    else:
        host = ffi.new("char[]", address.host.encode())
        io = lib.nr_binding_listen_udp(host, address.port, config.max_datagram, bound, error)
    if io == ffi.NULL:
        raise _cannot_listen(address, error[0])
    return io, address if address.scheme == "vhost" else address._replace(port=int(bound[0]))


class Server:
    """Opened: listening, memory taken. `run()` serves until `stop()`; `close()` gives everything back."""

    def __init__(self, spec: Spec, config: ServerConfig) -> None:
        self._ptr: Any = None
        self.plan: Plan = plan(spec, seed=config.seed)
        self.config = config
        made = _appliance_config(config)
        self.session_bytes = int(lib.nr_appliance_session_bytes(made))
        """bytes beside the engine"""
        if config.checkpoint is not None:
            _check_path(config.checkpoint.path)
        engine, self.engine_bytes = create(self.plan, limit=config.memory, beside=self.session_bytes)
        self.restored: Restored | None = None
        """what the checkpoint file brought back, if there was one"""
        ios: list[Any] = []
        self.addresses: list[Address] = []
        """where it listens, in the order of the config"""
        self.ports: dict[str, PortInfo] = {}
        """what the DPDK ports got, by name"""
        try:
            if config.checkpoint is not None and config.checkpoint.path.exists():
                self.restored = restore(engine, self.plan, config.checkpoint.path)
                for line in self.restored.differences:
                    logger.warning("checkpoint %s: %s", config.checkpoint.path, line)
            for wanted in config.listen:
                io, address = _listen(wanted, config)
                ios.append(io)
                self.addresses.append(address)
            with Filters(config.ports) as filters:
                started = start(config, filters.programs) if config.ports else (None, "")
                for port in config.ports:
                    io, info = open_port(started, port, config, slab_of(engine))
                    ios.append(io)
                    self.addresses += port.addresses
                    self.ports[port.name] = info
        except BaseException:
            for io in ios:
                lib.nr_io_close(io)
            lib.nr_engine_destroy(engine)
            raise
        links = ffi.new("struct nr_packet_io *[]", ios)
        made.io, made.links = links, len(links)
        status = ffi.new("int *")
        text = ffi.new("char[]", self.plan.spec.to_json().encode())
        ptr = lib.nr_appliance_open(engine, self.plan.config, text, made, status)
        if ptr == ffi.NULL:
            for io in ios:
                lib.nr_io_close(io)
            lib.nr_engine_destroy(engine)
            raise error_for(status[0] or lib.NR_NO_MEMORY, f"{self.url}: cannot serve")
        self._ptr = ptr
        self._thread: threading.Thread | None = None
        self._saver: threading.Thread | None = None
        self._ended = threading.Event()
        self._status = 0

    @property
    def url(self) -> str:
        """What clients connect to: the first of `urls`."""
        return self.urls[0]

    @property
    def urls(self) -> list[str]:
        """Every address that it listens on."""
        return [str(address) for address in self.addresses]

    def start(self) -> None:
        """Serves in a thread of its own."""

        def run() -> None:
            if self.config.core is not None:
                os.sched_setaffinity(0, {self.config.core})  # of this thread
            self._status = int(lib.nr_appliance_run(self._ptr))

        self._thread = threading.Thread(target=run, name="netreplay-server", daemon=True)
        self._thread.start()
        if self.config.checkpoint is not None and self.config.checkpoint.every is not None:
            self._saver = threading.Thread(target=self._save_often, name="netreplay-checkpoints", daemon=True)
            self._saver.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Until the loop ends, or `timeout` seconds; whether it ended, or raises why. Signal handlers run meanwhile."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while self._thread is not None and self._thread.is_alive():
            # In slices: the kernel may hand a signal to another thread, and Python's handlers run in this one only.
            self._thread.join(max(0.0, min(_SLICE, end - time.monotonic())))
            if time.monotonic() >= end and self._thread.is_alive():
                return False
        if self._status:
            raise error_for(self._status, f"{self.url}: the loop ended")
        return True

    def stop(self) -> None:
        """Makes the loop end within milliseconds; from any thread and any signal handler."""
        if self._ptr is not None:
            lib.nr_appliance_stop(self._ptr)

    # ---- checkpoints ----

    def checkpoint(self, timeout: float = math.inf) -> CheckpointProgress:
        """Has the loop write one now, beside its work, and waits until it is on the disk.

        SystemRefusedError (`errno`, `path`) or CheckpointError when it could not be written: what was there is still
        there. Timeout after so many seconds; the writing goes on then.
        """
        path, end = self._begin(), time.monotonic() + timeout
        while self.checkpoint_progress().running:
            if time.monotonic() >= end:
                raise Timeout(f"checkpoint {path}: not written within {timeout:g} s; it is still being written")
            if self._ended.wait(_LOOK):
                raise Closed(f"{self.url} is stopped: checkpoint {path} was not finished")
        return self._written(path)

    def checkpoint_progress(self) -> CheckpointProgress:
        """How far the running, or the last, checkpoint is."""
        return self._progress()[0]

    def _progress(self) -> tuple[CheckpointProgress, int, int]:
        if self._ptr is None:
            raise Closed(f"{self.url} is closed")
        now = ffi.new("struct nr_checkpoint_progress *")
        lib.nr_appliance_checkpoint_progress(self._ptr, now)
        progress = CheckpointProgress(
            running=now.state == lib.NR_CHECKPOINT_RUNNING,
            bytes=int(now.bytes),
            estimate=int(now.estimate),
            items=int(now.items),
            seconds=now.elapsed_ns / 1e9,
            longest_quantum=now.longest_quantum_ns / 1e9,
        )
        return progress, int(now.status), int(now.error)

    def _begin(self) -> str:
        if self._ptr is None:
            raise Closed(f"{self.url} is closed")
        if self.config.checkpoint is None:
            raise BadConfigError("server.checkpoint: is missing: there is no file to write", field="server.checkpoint")
        path, error = str(self.config.checkpoint.path), ffi.new("int *")
        status = int(lib.nr_appliance_checkpoint(self._ptr, os.fsencode(path), error))
        if status:
            raise failure(path, status, error[0])
        return path

    def _written(self, path: str) -> CheckpointProgress:
        progress, status, error = self._progress()
        if status:
            raise failure(path, status, error)
        return progress

    def _save_often(self) -> None:
        settings = self.config.checkpoint
        assert settings is not None
        while not self._ended.wait(settings.every):
            try:
                done = self.checkpoint()
            except Closed:
                return
            except NetreplayError as error:
                logger.warning("%s; trying again in %g s", error, settings.every)
            else:
                logger.info("checkpoint %s: %d bytes in %.1f s", settings.path, done.bytes, done.seconds)

    def save_stopped(self, tell: Callable[[CheckpointProgress], object] = lambda _: None) -> CheckpointProgress:
        """When the loop has ended: has its clients notice, then writes a checkpoint, however long it takes; `tell` is
        called once a second. One that is still being written is finished first. Errors as of checkpoint()."""
        if self._thread is not None:
            self._thread.join()
        self._ended.set()
        if self._saver is not None:
            self._saver.join()
        lib.nr_appliance_leave(self._ptr)
        self._finish(tell)
        path = self._begin()
        self._finish(tell)
        return self._written(path)

    def _finish(self, tell: Callable[[CheckpointProgress], object]) -> None:
        told = time.monotonic()
        while lib.nr_appliance_checkpoint_finish(self._ptr, int(_SLICE * 1e9)):
            if time.monotonic() - told >= 1.0:
                told = time.monotonic()
                tell(self.checkpoint_progress())

    # ---- the rest ----

    def counters(self) -> ServerCounters:
        """What the loop has done so far."""
        if self._ptr is None:
            raise Closed(f"{self.url} is closed")
        counters = ffi.new("struct nr_appliance_counters *")
        lib.nr_appliance_counters(self._ptr, counters)
        return ServerCounters(*(int(getattr(counters, name)) for name in ServerCounters._fields))

    def tables(self) -> dict[str, TableInfo]:
        """Every table's numbers, at most 100 ms old, by name."""
        if self._ptr is None:
            raise Closed(f"{self.url} is closed")
        infos: dict[str, TableInfo] = {}
        for index, name in enumerate(self.plan.table_names):
            info = ffi.new("struct nr_table_info *")
            check(lib.nr_appliance_table(self._ptr, index, info), f"table {name!r}")
            infos[name] = TableInfo(name, *(getattr(info, key) for key in TableInfo._fields[1:]))
        return infos

    def close(self) -> None:
        """Stops and gives memory and port back."""
        if self._ptr is None:
            return
        self.stop()
        self._ended.set()
        for thread in (self._thread, self._saver):
            if thread is not None:
                thread.join()
        ptr, self._ptr = self._ptr, None
        lib.nr_appliance_close(ptr)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
