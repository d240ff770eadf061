"""Why a blocking call did not end in time: from the C's struct nr_blocked to the Timeout that says so."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

from netreplay.address import Address
from netreplay.errors import (
    EXCEPTION_MAP,
    BadVersionError,
    CreditsTimeout,
    EmptyTimeout,
    LeasesTimeout,
    LeavingTimeout,
    LimiterTimeout,
    NetreplayError,
    PassesTimeout,
    RefusedError,
    SpaceTimeout,
    Status,
    StepsTimeout,
    Timeout,
    TooManyError,
    TurnTimeout,
)

_NEVER = 2**64 - 1
_SILENT = 1_500_000_000  # ns without a datagram after which the server, not the limiter, is what a call waits for

_WAITS: dict[int, tuple[type[Timeout], str]] = {
    Status.WAIT_LIMITER: (LimiterTimeout, "limiter: {have} of {need} items{where}"),
    Status.WAIT_EMPTY: (EmptyTimeout, "empty: nothing can be drawn{where}: no item has a positive priority"),
    Status.WAIT_SPACE: (
        SpaceTimeout,
        "space: {have} places free of {need} wanted{where}; leases or streams hold the rest",
    ),
    Status.WAIT_LEASES: (LeasesTimeout, "leases: {have} drawn items held, {need} allowed{where}"),
    Status.WAIT_STEPS: (StepsTimeout, "steps: an item's steps had not all arrived{where}"),
    Status.WAIT_TURN: (TurnTimeout, "turn: an earlier insert, or another publisher, was not finished{where}"),
    Status.WAIT_SAMPLES: (
        LimiterTimeout,
        "limiter: {have} samples would be drawn, {need} are allowed by the inserts so far{where}",
    ),
    Status.WAIT_INSERTS: (
        LimiterTimeout,
        "limiter: {have} samples were taken, {need} must have been before the next insert{where}",
    ),
    Status.WAIT_LEAVING: (LeavingTimeout, "leaving: {have} items are still to leave{where}"),
    Status.WAIT_PASSES: (
        PassesTimeout,
        "passes: the last pass is over, {have} items of {need} wanted were not yet drawn{where}",
    ),
}


_CAUSES = {  # by nr_blocked's unreachable
    0: "",
    errno.ECONNREFUSED: " (connection refused): is `netreplay serve` running there?",
    errno.ENOENT: " (no such socket): is `netreplay serve` running, and listening there?",
}
_NO_WAY = " (no route to host): `ip route get` shows the way there, if there is one"

_STREAMS: dict[int, str] = {
    Status.TOO_MANY: (
        "all {streams} streams of store {store!r} are taken by live actors; raise {field} (now {streams}) in the "
        "server's config, or close other actors and open this one anew"
    ),
    Status.STREAM_OWNED: (
        "another live session owns a stream of this actor in store {store!r}; open the actor anew ({field}, now "
        "{streams}, must have room for both until that session ends)"
    ),
    Status.STREAM_GONE: (
        "the server gave a stream of this actor in store {store!r} up for others; open the actor anew, or raise "
        "{field} (now {streams}) in the server's config"
    ),
}


def stream_refusal(status: int, what: str, store: str, streams: int, **fields: Any) -> NetreplayError | None:
    """The error of an actor that has no place for its streams at the server; None for any other status."""
    if status not in _STREAMS:
        return None
    field = f"store.{store}.streams"
    text = _STREAMS[status].format(store=store, streams=streams, field=field)
    known = Status(status)
    return EXCEPTION_MAP[known](f"{what}: {text}", status=known, store=store, field=field, value=streams, **fields)


def vhost_refusal(url: str, error: int) -> NetreplayError | None:
    """The error of a vhost socket that will not have this client, by errno; None when waiting may help."""
    if error == errno.EUSERS:
        return TooManyError(
            f"connect to {url}: the server has as many vhost clients as it may have; close some, or raise "
            "server.vhost_clients in its config",
            field="server.vhost_clients",
        )
    if error == errno.EACCES:
        return RefusedError(
            f"connect to {url}: no permission to use this socket: join the group of its file (`ls -l` shows it), "
            "or let the server set server.vhost_mode"
        )
    if error == errno.EPROTONOSUPPORT:
        return BadVersionError(
            f"connect to {url}: what answers there speaks another version of the protocol, or is no netreplay server"
        )
    return None


def explain(what: str, blocked: Any, seconds: float, address: Address, tables: Sequence[str]) -> Timeout:
    """The reason of the server's, or credits, or no answer; with its numbers, in words and as fields."""
    wait = blocked.wait
    table = tables[wait.table] if wait.table < len(tables) else None
    have, need = int(wait.have), int(wait.need)
    fields = {"have": have, "need": need, "table": table, "seconds": seconds}
    if address.scheme != "local":
        silent = int(blocked.silent_ns) if blocked.silent_ns != _NEVER else int(seconds * 1e9)
        if silent >= _SILENT or blocked.unreachable or not wait.reason:
            return _no_answer(what, blocked, seconds, silent, address.peer, fields)
    kind, text = _WAITS.get(wait.reason, (Timeout, "no reason was given"))
    where = f" in table {table!r}" if table is not None else ""
    said = text.format(have=have, need=need, where=where)
    return kind(f"{what}: {said} after {seconds:.1f} s", **fields)


def _no_answer(what: str, blocked: Any, seconds: float, silent: int, peer: str, fields: dict[str, Any]) -> Timeout:
    outstanding, allowed = int(blocked.outstanding), int(blocked.credits)
    if silent < _SILENT and not blocked.unreachable and 0 < allowed <= outstanding:
        counts = f"{outstanding} of {allowed} datagrams are in flight to {peer}"
        numbers = {**fields, "have": outstanding, "need": allowed}
        return CreditsTimeout(f"{what}: credits: {counts} after {seconds:.1f} s", **numbers)
    cause = _CAUSES.get(blocked.unreachable, _NO_WAY)
    # Before the call nothing may have been asked: that silence is not held against the server.
    for_seconds = min(silent / 1e9, seconds) if silent >= _SILENT else seconds
    return Timeout(f"{what}: no answer from {peer} for {for_seconds:.1f} s{cause}", **fields)
