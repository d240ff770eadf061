"""Why a blocking call did not end in time: from the C's struct nr_blocked to the Timeout that says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netreplay.address import Address, host_port
from netreplay.errors import (
    CreditsTimeout,
    EmptyTimeout,
    LeasesTimeout,
    LimiterTimeout,
    SpaceTimeout,
    Status,
    StepsTimeout,
    Timeout,
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
}


_CAUSES = ("", " (connection refused)", " (no route to host)")  # by nr_blocked's unreachable


def explain(what: str, blocked: Any, seconds: float, address: Address, tables: Sequence[str]) -> Timeout:
    """The reason of the server's, or credits, or no answer; with its numbers, in words and as fields."""
    wait = blocked.wait
    table = tables[wait.table] if wait.table < len(tables) else None
    have, need = int(wait.have), int(wait.need)
    fields = {"have": have, "need": need, "table": table, "seconds": seconds}
    if address.scheme == "udp":
        silent = int(blocked.silent_ns) if blocked.silent_ns != _NEVER else int(seconds * 1e9)
        if silent >= _SILENT or blocked.unreachable or not wait.reason:
            return _no_answer(what, blocked, seconds, silent, host_port(address.host, address.port), fields)
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
    cause = _CAUSES[blocked.unreachable]
    # Before the call nothing may have been asked: that silence is not held against the server.
    for_seconds = min(silent / 1e9, seconds) if silent >= _SILENT else seconds
    return Timeout(f"{what}: no answer from {peer} for {for_seconds:.1f} s{cause}", **fields)
