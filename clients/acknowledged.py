"""What comes back for an actor's items: keys, refusals of single items. Source: docs/semantics.md 2 (flush), 7."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, first_slice, lib, wait_slices
from netreplay.clients.handle import Handle
from netreplay.clients.losses import announce
from netreplay.clients.reasons import stream_refusal
from netreplay.errors import ItemsRefused, Refusal, Status, Timeout, reason_of

_AT_ONCE = 256
_REMEMBERED = 10_000  # bad priorities whose values are kept for the error
_OK, _PENDING = int(Status.OK), int(Status.PENDING)


class Acknowledgements:
    """Of one actor. `binding` is its struct nr_binding; `closing` is set when close() wants waits to end."""

    def __init__(self, handle: Handle, store: str, binding: Any) -> None:
        self._handle, self._store, self._binding = handle, store, binding
        self.closing = False
        self._loss = int(lib.NR_BINDING_LOSS)
        self._operation = ffi.new("struct nr_operation **")
        self._keys = np.empty(_AT_ONCE, np.int64)
        self._statuses = np.empty(_AT_ONCE, np.int32)
        self._key_pointer = ffi.from_buffer("uint64_t[]", self._keys)
        self._status_pointer = ffi.from_buffer("int32_t[]", self._statuses)
        self._base = 0  # items formed before the last flush
        self._bad: dict[int, float] = {}  # bad priorities by the item's number

    def formed(self, actor: Any) -> int:
        """Items that the actor has formed in its life."""
        counters = ffi.new("struct nr_actor_counters *")
        lib.nr_actor_counters(actor, counters)
        return int(counters.items)

    def open(self, actor: Any) -> bool:
        """Whether there is anything to flush."""
        return self.formed(actor) > self._base

    def remember(self, first: int, priorities: NDArray[np.float64]) -> None:
        """Keeps priorities that the server will refuse, of items numbered from `first`: the error shows them."""
        for index in np.flatnonzero(~(np.isfinite(priorities) & (priorities >= 0))):
            if len(self._bad) < _REMEMBERED:
                self._bad[first + int(index)] = float(priorities[index])

    def flush(self, actor: Any, timeout: float) -> NDArray[np.int64]:
        """Waits until all items are decided; their keys, or ItemsRefused, or why their streams have no place."""
        operation, binding = self._operation, self._binding
        if operation[0]:  # of a flush that Ctrl-C ended
            lib.nr_binding_cancel(operation)
        begin = time.monotonic()
        status = lib.nr_binding_flush(
            actor, first_slice(timeout), operation, _AT_ONCE, self._key_pointer, self._status_pointer, binding
        )
        if status == _PENDING:
            status = self._wait(actor, timeout, begin)
        if status == self._loss:
            announce(self._handle, stacklevel=4)
        elif status:
            self._refuse(actor, status)
        count = binding.keys
        self._base += count
        if count < _AT_ONCE and not binding.failed:
            return self._keys[:count].copy()
        return self._collect(actor, count)

    def _step(self, actor: Any, wait_ns: int) -> int:
        operation = self._operation
        if operation[0]:
            status = int(lib.nr_binding_wait(operation, wait_ns))
            if status:
                return status
        return int(
            lib.nr_binding_flush(
                actor, wait_ns, operation, _AT_ONCE, self._key_pointer, self._status_pointer, self._binding
            )
        )

    def _refuse(self, actor: Any, status: int) -> None:
        """Raises; where streams were refused, with what became of the items, which are told by this and not again."""
        what = f"flush of store {self._store!r}"
        refusal = stream_refusal(status, what, self._store, self._handle.plan.spec.stores[self._store].streams or 0)
        if refusal is None:
            self._handle.fail(status, what)
            return
        keys, statuses = self._take(actor, _AT_ONCE, [], [])
        self._base = self.formed(actor)
        self._bad = {}
        lost = int(((statuses != Status.OK) & (statuses != Status.DUPLICATE)).sum())
        if len(keys):
            refusal.args = (f"{refusal}; {lost} of {len(keys)} items since the last flush are not stored",)
        refusal.keys = keys  # type: ignore[attr-defined]
        raise refusal

    def _take(
        self, actor: Any, count: int, keys: list[NDArray[np.int64]], statuses: list[NDArray[np.int32]]
    ) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """What the C still holds, behind what was taken already; `count` of the last crossing says if there is more."""
        while count == _AT_ONCE:
            count = lib.nr_actor_keys(actor, _AT_ONCE, self._key_pointer, self._status_pointer)
            keys.append(self._keys[:count].copy())
            statuses.append(self._statuses[:count].copy())
        return np.concatenate(keys), np.concatenate(statuses)

    def _wait(self, actor: Any, timeout: float, begin: float) -> int:
        operation = self._operation

        def step(wait_ns: int) -> int:
            return int(lib.NR_CLOSED) if self.closing else self._step(actor, wait_ns)

        def give_up() -> None:
            lib.nr_binding_cancel(operation)

        def explain(seconds: float) -> Timeout:
            blocked = ffi.new("struct nr_blocked *")
            if operation[0]:
                lib.nr_operation_blocked(operation[0], blocked)
            else:
                lib.nr_replay_blocked(self._handle.ptr, blocked)
            return self._handle.explain(f"flush of store {self._store!r}", blocked, seconds)

        status = wait_slices(step, timeout, explain, give_up, begin)
        if status not in (_OK, self._loss):
            give_up()
        return status

    def _collect(self, actor: Any, count: int) -> NDArray[np.int64]:
        """More keys than one crossing takes, or some refused."""
        keys, statuses = self._take(actor, count, [self._keys[:count].copy()], [self._statuses[:count].copy()])
        # The C keeps the newest NR_KEPT_KEYS: of an actor that never flushed, older ones are gone.
        self._base = self.formed(actor)
        first = self._base - len(keys)
        bad, self._bad = self._bad, {}
        failed = np.flatnonzero((statuses != Status.OK) & (statuses != Status.DUPLICATE))
        if failed.size == 0:
            return keys
        refused = [
            Refusal(int(i), bad.get(first + int(i)), reason_of(int(statuses[i])), Status(int(statuses[i])))
            for i in failed
        ]
        shown = "; ".join(
            f"item {r.index}: {r.reason}" + ("" if r.value is None else f": {r.value!r}") for r in refused[:5]
        )
        more = f" and {len(refused) - 5} more" if len(refused) > 5 else ""
        what = f"store {self._store!r}: {len(refused)} of {len(keys)} items refused: {shown}{more}"
        streams = self._handle.plan.spec.stores[self._store].streams or 0
        reasons = (stream_refusal(status, what, self._store, streams) for status in {r.status for r in refused})
        raise ItemsRefused(
            next((str(reason) for reason in reasons if reason is not None), what),
            keys=keys,
            refused=refused,
        )
