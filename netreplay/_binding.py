"""The thin layer over the C: statuses become exceptions, and blocking calls are cut in slices so that Ctrl-C works.

Nothing else imports `netreplay._core`. Every call releases the GIL.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from netreplay._core import ffi, lib
from netreplay.errors import Status, error_for

__all__ = ["LONG_WAIT", "SLICE", "check", "deadline_of", "ffi", "first_slice", "lib", "slice_until", "wait_slices"]

logger = logging.getLogger("netreplay")

SLICE = 50_000_000
"""nanoseconds that one C call may block: how late Ctrl-C and close() are noticed at worst"""
LONG_WAIT = 10.0
"""seconds after which a wait that has no nearer end says in the log why it waits, and again after each as many"""

_OK = int(Status.OK)
_PENDING = int(Status.PENDING)


def check(status: int, message: str = "", **fields: Any) -> None:
    """Raises the exception of a status that is not NR_OK; the one way from a C status to Python."""
    if status != _OK:
        raise error_for(status, message, **fields)


def deadline_of(timeout: float) -> float:
    """The monotonic second at which a timeout (seconds; inf: never) ends."""
    return math.inf if timeout == math.inf else time.monotonic() + timeout


def slice_until(deadline: float) -> int:
    """Nanoseconds of the next slice of a wait that ends at `deadline`."""
    if deadline == math.inf:
        return SLICE
    left = min(deadline - time.monotonic(), 1.0)
    return 0 if left <= 0 else min(SLICE, int(left * 1e9) + 1)


def first_slice(timeout: float) -> int:
    """Nanoseconds of the first slice of a wait of `timeout` seconds; 0 tries once."""
    return SLICE if timeout >= 0.05 else int(timeout * 1e9)


def wait_slices(
    step: Callable[[int], int],
    timeout: float,
    explain: Callable[[float], Exception],
    give_up: Callable[[], object] = lambda: None,
    begin: float | None = None,
) -> int:
    """Repeats step(wait_ns) while it answers NR_PENDING; its final status.

    At the deadline, or when interrupted, gives up; at the deadline raises explain(seconds waited). The timeout runs
    from the monotonic second `begin`, which is that of the call when a first slice of it is over already.
    """
    if begin is None:
        begin = time.monotonic()
    deadline = math.inf if timeout == math.inf else begin + timeout
    speak = begin + LONG_WAIT
    try:
        while (status := step(slice_until(deadline))) == _PENDING:
            now = time.monotonic()
            if now >= deadline:
                raise explain(now - begin)
            if now >= speak:
                speak = now + LONG_WAIT
                logger.warning("still waiting after %.0f s: %s", now - begin, explain(now - begin))
    except BaseException:
        give_up()
        raise
    return status
