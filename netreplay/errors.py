"""Every error of netreplay: one class for each status of the C (dpdk_ext/engine/status.h) and a few of Python's own.

All derive from `NetreplayError`, and from the built-in error that fits, so that `except TimeoutError` works too.
An error's numbers are attributes; its message names the field, the index, the value and the way out.
"""

# ruff: noqa: N818 - "Timeout" and "Closed" say it all; the module is called errors

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Status(enum.IntEnum):
    """`enum nr_status` of the C; a test keeps the two equal."""

    OK = 0
    PENDING = 1
    DUPLICATE = 2
    WAIT_LIMITER = 10
    WAIT_EMPTY = 11
    WAIT_SPACE = 12
    WAIT_LEASES = 13
    WAIT_STEPS = 14
    WAIT_TURN = 15
    WAIT_SAMPLES = 16
    WAIT_INSERTS = 17
    WAIT_LEAVING = 18
    WAIT_PASSES = 19
    BAD_PRIORITY = 30
    BAD_WINDOW = 31
    BAD_LENGTH = 32
    NO_STORE = 33
    NO_TABLE = 34
    NO_SET = 35
    STREAM_GONE = 36
    STREAM_OWNED = 37
    STALE = 38
    CONFLICT = 39
    RESTART = 40
    LEASE_EXPIRED = 41
    BAD_COUNT = 42
    BAD_LIMITS = 43
    MALFORMED = 60
    BAD_VERSION = 61
    NO_SESSION = 62
    TOO_MANY = 63
    REFUSED = 64
    NO_MEMORY = 80
    TIMEOUT = 81
    CLOSED = 82
    BAD_CONFIG = 83
    FORKED = 84
    BAD_ADDRESS = 85
    SYSTEM = 86


class NetreplayError(Exception):
    """Base of all errors. Keyword arguments become attributes (and survive pickling)."""

    def __init__(self, message: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.__dict__.update(fields)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class InternalError(NetreplayError, RuntimeError):
    """A status that no caller should meet: please report it."""


# ---- Waiting ----


class Timeout(NetreplayError, TimeoutError):
    """A blocking call did not end within its timeout. `reason` is one word, `have` and `need` are its numbers."""

    reason: str = "no answer"
    have: int = 0
    need: int = 0


class LimiterTimeout(Timeout):
    """The table's rate limiter held the call back; `status` says what it counts.

    WAIT_LIMITER: it has `have` of `need` items. WAIT_SAMPLES: with this batch `have` samples would be drawn and `need`
    are allowed. WAIT_INSERTS: `have` samples were taken and `need` must have been.
    """

    reason = "limiter"


class LeavingTimeout(Timeout):
    """`have` items were still leaving the table: expired ones, or all of them by a reset."""

    reason = "leaving"


class PassesTimeout(Timeout):
    """The last pass over the table is over: `have` items are left of the `need` wanted."""

    reason = "passes"


class EmptyTimeout(Timeout):
    """Nothing in the table can be drawn: it is empty or every priority is zero."""

    reason = "empty"


class SpaceTimeout(Timeout):
    """No step or item place could be freed."""

    reason = "space"


class LeasesTimeout(Timeout):
    """Too many drawn items are held by learners."""

    reason = "leases"


class StepsTimeout(Timeout):
    """An item's steps had not all arrived."""

    reason = "steps"


class TurnTimeout(Timeout):
    """An earlier insert had not committed, or another publisher was writing."""

    reason = "turn"


class CreditsTimeout(Timeout):
    """The client had as many datagrams in flight as it may."""

    reason = "credits"


# ---- Refusals of one item, key or call ----


class BadPriorityError(NetreplayError, ValueError):
    """A priority is NaN, infinite or negative."""


class BadWindowError(NetreplayError, ValueError):
    """An item names steps that its stream does not hold."""


class BadLengthError(NetreplayError, ValueError):
    """Bytes do not fit the step, column, row or message they are for."""


class NoStoreError(NetreplayError, LookupError):
    """The server has no such store."""


class NoTableError(NetreplayError, LookupError):
    """The server has no such table."""


class NoSetError(NetreplayError, LookupError):
    """The server has no such parameter set."""


class StreamGoneError(NetreplayError):
    """The stream was evicted, or never opened in this session."""


class StreamOwnedError(NetreplayError):
    """Another live session owns the stream."""


class StaleError(NetreplayError, LookupError):
    """The key's item has left the table."""


class ConflictError(NetreplayError):
    """`publish(expect=...)` met another version."""


class RestartError(NetreplayError):
    """The parameters being read were replaced meanwhile."""


class LeaseExpiredError(NetreplayError):
    """The server took the draw back before all its bytes had been read."""


class BadCountError(NetreplayError, ValueError):
    """A number of rows, items or keys is zero, too large, or contradicts the autoreset mode."""


class BadLimitsError(NetreplayError, ValueError):
    """The table's limits would contradict each other, or its capacity.

    A ratio wants samples_per_insert and error_buffer, at least the larger of 1 and samples_per_insert. Fields: `table`
    and `limits`, what was asked for.
    """


# ---- Refusals of the conversation ----


class MalformedError(NetreplayError, ValueError):
    """Bytes that do not follow their format."""


class BadVersionError(NetreplayError):
    """The peer speaks another version of the protocol."""


class NoSessionError(NetreplayError, ConnectionError):
    """The server no longer knows this session."""


class TooManyError(NetreplayError):
    """The server's sessions or streams are at their configured number."""


class RefusedError(NetreplayError, PermissionError):
    """The server refused this client, or the client did not say what it must (`auth=`)."""


# ---- Local ----


class NoMemoryError(NetreplayError, MemoryError):
    """The memory a configuration needs is not there; the message holds the arithmetic."""


class Closed(NetreplayError):
    """Used after close(), or closed meanwhile."""


class BadConfigError(NetreplayError, ValueError):
    """A configuration that cannot be."""


class Forked(NetreplayError, RuntimeError):
    """Used in a child of the process that opened it."""


class BadAddressError(NetreplayError, ValueError):
    """An address that cannot be read, resolved or bound."""


class SystemRefusedError(NetreplayError, OSError):
    """The operating system refused. `errno` says why."""

    errno: int | None = None


# ---- Python's own ----


class SpecError(BadConfigError):
    """A spec is wrong at `path` (for example "table.pong.sampler"), where `value` stands."""

    path: str = ""
    value: Any = None


class CheckpointError(NetreplayError, ValueError):
    """A checkpoint cannot be used or made. Fields: `path`; `offset` of the damaged block, `field` of the spec that
    differs, or None."""

    path: str = ""
    offset: int | None = None
    field: str | None = None


class ColumnError(NetreplayError, ValueError, TypeError):
    """A value does not fit its column. Fields: `store`, `column`, `index` (of the first misfit, or None), `value`."""

    store: str = ""
    column: str = ""
    index: tuple[int, ...] | None = None
    value: Any = None


class NotYetError(NetreplayError, NotImplementedError):
    """Part of the plan, not there in this version."""


class MissingPackageError(NetreplayError, ImportError):
    """A Python package that this part of netreplay needs is not installed. Field: `package`, as pip calls it."""

    package: str = ""


class NotPicklableError(NetreplayError, TypeError):
    """A handle that belongs to one process."""


@dataclass(frozen=True)
class Refusal:
    """One refused item."""

    index: int
    """position in the keys that `flush()` returns"""
    value: float | None
    """the priority that was refused, if that was the reason"""
    reason: str
    """why, in words"""
    status: Status
    """why, as the server said it"""


class ItemsRefused(NetreplayError, ValueError):
    """The server refused some items; every other item is stored."""

    keys: NDArray[np.int64]
    """keys of all items in the order formed; -1 where refused, int64 [n]"""
    refused: list[Refusal]


class DataLossWarning(UserWarning):
    """A restarted server no longer holds items that an earlier one had acknowledged."""


EXCEPTION_MAP: dict[Status, type[NetreplayError]] = {
    Status.PENDING: InternalError,
    Status.DUPLICATE: InternalError,
    Status.WAIT_LIMITER: LimiterTimeout,
    Status.WAIT_EMPTY: EmptyTimeout,
    Status.WAIT_SPACE: SpaceTimeout,
    Status.WAIT_LEASES: LeasesTimeout,
    Status.WAIT_STEPS: StepsTimeout,
    Status.WAIT_TURN: TurnTimeout,
    Status.WAIT_SAMPLES: LimiterTimeout,
    Status.WAIT_INSERTS: LimiterTimeout,
    Status.WAIT_LEAVING: LeavingTimeout,
    Status.WAIT_PASSES: PassesTimeout,
    Status.BAD_PRIORITY: BadPriorityError,
    Status.BAD_WINDOW: BadWindowError,
    Status.BAD_LENGTH: BadLengthError,
    Status.NO_STORE: NoStoreError,
    Status.NO_TABLE: NoTableError,
    Status.NO_SET: NoSetError,
    Status.STREAM_GONE: StreamGoneError,
    Status.STREAM_OWNED: StreamOwnedError,
    Status.STALE: StaleError,
    Status.CONFLICT: ConflictError,
    Status.RESTART: RestartError,
    Status.LEASE_EXPIRED: LeaseExpiredError,
    Status.BAD_COUNT: BadCountError,
    Status.BAD_LIMITS: BadLimitsError,
    Status.MALFORMED: MalformedError,
    Status.BAD_VERSION: BadVersionError,
    Status.NO_SESSION: NoSessionError,
    Status.TOO_MANY: TooManyError,
    Status.REFUSED: RefusedError,
    Status.NO_MEMORY: NoMemoryError,
    Status.TIMEOUT: Timeout,
    Status.CLOSED: Closed,
    Status.BAD_CONFIG: BadConfigError,
    Status.FORKED: Forked,
    Status.BAD_ADDRESS: BadAddressError,
    Status.SYSTEM: SystemRefusedError,
}


def reason_of(status: int) -> str:
    """The first sentence of a status's class, as a reason in words."""
    try:
        doc = EXCEPTION_MAP[Status(status)].__doc__ or ""
    except (ValueError, KeyError):
        return f"unknown status {status}"
    return doc.split(". ")[0].rstrip(".").lower()


def error_for(status: int, message: str = "", **fields: Any) -> NetreplayError:
    """The exception for a status of the C; never raises itself."""
    try:
        known = Status(status)
    except ValueError:
        return InternalError(f"{message or 'a call'}: unknown status {status}", status=status)
    reason = reason_of(known)
    text = f"{message}: {reason}" if message else reason
    return EXCEPTION_MAP[known](text, status=known, **fields)
