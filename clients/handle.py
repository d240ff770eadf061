"""A C replay and who uses it: freed when the last user is done, unusable after close() and in a forked child."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from netreplay._binding import check, ffi, first_slice, lib, wait_slices
from netreplay._engine import Plan
from netreplay.address import Address
from netreplay.clients.arguments import seconds as checked_seconds
from netreplay.clients.reasons import explain
from netreplay.errors import Closed, Forked, NetreplayError, SpecError, Status, Timeout

if TYPE_CHECKING:
    from netreplay.clients.actor import Actor
    from netreplay.clients.learner import Learner
    from netreplay.clients.losses import Loss

_PENDING = int(Status.PENDING)
_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """Counts the users of a C replay. `dead` is None while it can be used, else why not."""

    __slots__ = (
        "__weakref__",
        "actors",
        "address",
        "dead",
        "learners",
        "lock",
        "losses",
        "plan",
        "ptr",
        "timeout",
        "users",
        "version",
    )

    def __init__(self, ptr: Any, address: Address, timeout: float) -> None:
        self.ptr = ptr
        self.address = address
        self.timeout = timeout
        self.plan: Plan
        self.dead: type[NetreplayError] | None = None
        self.users = 1
        self.lock = threading.Lock()
        self.version = 0
        self.losses: list[Loss] = []
        self.actors: weakref.WeakSet[Actor] = weakref.WeakSet()
        self.learners: weakref.WeakSet[Learner] = weakref.WeakSet()
        _handles.add(self)

    def __enter__(self) -> Any:
        """Keeps the C replay for the length of one call."""
        self.retain()
        return self.ptr

    def __exit__(self, *_: object) -> None:
        self.release()

    def retain(self) -> None:
        """One user more; an error when there is nothing left to use."""
        if self.dead is not None:
            self.refuse()
        with self.lock:
            if self.ptr is None:
                self.refuse()
            self.users += 1

    def release(self) -> None:
        """One user less; the last one frees."""
        if self.dead is Forked:
            return
        with self.lock:
            self.users -= 1
            if self.users > 0 or self.ptr is None:
                return
            ptr, self.ptr = self.ptr, None
        lib.nr_replay_close(ptr)
        lib.nr_replay_free(ptr)

    def close(self) -> None:
        """Makes every blocked call return Closed; from any thread, more than once."""
        with self.lock:
            if self.dead is not None:
                return
            self.dead = Closed
            self.users += 1
            ptr = self.ptr
        lib.nr_replay_close(ptr)
        self.release()
        self.release()  # the owner's

    def refuse(self) -> None:
        """Raises why the replay cannot be used."""
        if self.dead is Forked:
            raise Forked(
                f"{self.address} was opened by the process that forked this one and cannot be used here: "
                "call connect() in the child, or start processes with multiprocessing's 'spawn'"
            )
        raise Closed(f"{self.address} is closed")

    # ---- blocking calls ----

    def call(
        self,
        what: str,
        start: Callable[[Any, int, Any], int],
        timeout: float | None = None,
        **fields: Any,
    ) -> int:
        """Starts an operation with start(replay, wait_ns, operation **) and waits for its end; other statuses raise."""
        limit = self.timeout if timeout is None else checked_seconds(timeout)
        operation = ffi.new("struct nr_operation **")
        with self as replay:
            begin = time.monotonic()
            try:
                status = start(replay, first_slice(limit), operation)
            except BaseException:  # Ctrl-C, seen when the call returns
                lib.nr_binding_cancel(operation)
                raise
            if status == _PENDING:
                status = self._wait(what, start, operation, limit, begin)
            if status:
                self.fail(status, what, **fields)
            return status

    def _wait(
        self, what: str, start: Callable[[Any, int, Any], int], operation: Any, limit: float, begin: float
    ) -> int:
        """The rest of a call that did not end in its first slice."""

        def step(wait_ns: int) -> int:
            if operation[0]:
                return int(lib.nr_binding_wait(operation, wait_ns))
            return start(self.ptr, wait_ns, operation)

        def give_up() -> None:
            lib.nr_binding_cancel(operation)

        def explain(seconds: float) -> Timeout:
            blocked = ffi.new("struct nr_blocked *")
            if operation[0]:
                lib.nr_operation_blocked(operation[0], blocked)
            else:
                lib.nr_replay_blocked(self.ptr, blocked)
            return self.explain(what, blocked, seconds)

        return wait_slices(step, limit, explain, give_up, begin)

    def fail(self, status: int, what: str, **fields: Any) -> None:
        """Raises the exception of a status; a close from elsewhere and a server with another spec are told as such."""
        if status == Status.CLOSED:
            raise Closed(f"{what}: {self.address} was closed meanwhile")
        if status == Status.BAD_CONFIG and self.address.scheme != "local":
            # What its session ends with when it meets another server; Python gives the C no other cause for it.
            raise SpecError(
                f"{what}: the server that answers at {self.address.peer} now has another "
                "spec than the one connected to; close this connection and connect again",
                status=Status.BAD_CONFIG,
                path="spec",
                **fields,
            )
        check(status, what, **fields)

    def explain(self, what: str, blocked: Any, seconds: float) -> Timeout:
        """Why a call did not end in time."""
        return explain(what, blocked, seconds, self.address, self.plan.table_names if hasattr(self, "plan") else ())


def _after_fork() -> None:
    for handle in list(_handles):
        handle.dead = Forked
        handle.ptr = None
        for actor in handle.actors:
            actor._forked()
        for learner in handle.learners:
            learner._forked()


os.register_at_fork(after_in_child=_after_fork)


def remaining(timeout: float, begin: float) -> float:
    """Seconds left of a timeout that began at the monotonic second `begin`."""
    return max(0.0, timeout - (time.monotonic() - begin))
