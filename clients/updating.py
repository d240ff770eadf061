"""New priorities for drawn items, and deletions: from what users pass to one C call, through buffers made once.

Source: docs/semantics.md 3 (outcomes). An array that is new each time costs more to export to C than to copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, first_slice, lib, wait_slices
from netreplay.clients.arguments import shown
from netreplay.clients.handle import Handle
from netreplay.dtypes import ColumnType, Misfit, fit, is_torch, to_array
from netreplay.errors import ColumnError, Status, Timeout

_I8 = np.dtype(np.int64)
_INT64, _FLOAT64 = ColumnType("int64"), ColumnType("float64")
_PENDING = int(Status.PENDING)


class DeleteResult(NamedTuple):
    """What became of a deletion of n keys."""

    deleted: int
    """items that left"""
    stale: int
    """keys whose item had left before"""
    superseded: int
    """keys that the call names again later"""
    outcome: NDArray[np.uint8]
    """per key: 0 deleted, 1 stale, 3 superseded; uint8 [n], read-only"""


class UpdateResult(NamedTuple):
    """What became of an update of n priorities."""

    applied: int
    """keys that have their new priority"""
    stale: int
    """keys whose item had left the table"""
    refused: int
    """priorities that were NaN, infinite or negative"""
    superseded: int
    """earlier values of keys that the call names again"""
    outcome: NDArray[np.uint8]
    """per key: 0 applied, 1 stale, 2 refused, 3 superseded; uint8 [n], read-only"""
    deleted: DeleteResult | None = None
    """of `delete=`"""


class Updater:
    """Of one learner or table; one call at a time. Whoever has it keeps the handle."""

    def __init__(self, handle: Handle, table: str) -> None:
        self._handle, self._table = handle, table
        self._index = handle.plan.table_index[table]
        self._operation = ffi.new("struct nr_operation **")
        self._reserve(512)

    def _reserve(self, count: int) -> None:
        self._room = count
        self._keys = np.zeros(count, np.int64)
        self._values = np.zeros(count, np.float64)
        self._key_pointer = ffi.from_buffer("uint64_t[]", self._keys)
        self._value_pointer = ffi.from_buffer("double[]", self._values)
        self._outcome = ffi.new("uint8_t[]", count)

    def update(self, keys: Any, priorities: Any, limit: float, closing: Callable[[], bool]) -> UpdateResult:
        """See Learner.update_priorities. Ends with Closed soon after `closing()` has become true."""
        count = self._take_keys(keys)
        self._take_priorities(priorities, count)
        if count:
            self._run(
                ("update", "priorities"),
                count,
                lambda wait_ns: lib.nr_update(
                    self._handle.ptr,
                    self._index,
                    count,
                    self._key_pointer,
                    self._value_pointer,
                    self._outcome,
                    wait_ns,
                    self._operation,
                ),
                limit,
                closing,
            )
        outcome: bytes = ffi.buffer(self._outcome, count)[:]
        applied = outcome.count(0)
        rest = (0, 0, 0) if applied == count else (outcome.count(1), outcome.count(2), outcome.count(3))
        return UpdateResult(applied, *rest, np.frombuffer(outcome, np.uint8))

    def delete(self, keys: Any, limit: float, closing: Callable[[], bool]) -> DeleteResult:
        """See Table.delete. Ends as update() does."""
        count = self._take_keys(keys)
        if count:
            self._run(
                ("deletion", "items"),
                count,
                lambda wait_ns: lib.nr_delete(
                    self._handle.ptr, self._index, count, self._key_pointer, self._outcome, wait_ns, self._operation
                ),
                limit,
                closing,
            )
        outcome: bytes = ffi.buffer(self._outcome, count)[:]
        return DeleteResult(outcome.count(0), outcome.count(1), outcome.count(3), np.frombuffer(outcome, np.uint8))

    def _take_keys(self, keys: Any) -> int:
        if type(keys) is not np.ndarray or keys.dtype is not _I8 or keys.ndim != 1:
            keys = self._fit_keys(keys)
        count = len(keys)
        if count > self._room:
            self._reserve(2 * count)
        self._keys[:count] = keys
        return count

    def _fit_keys(self, keys: Any) -> NDArray[np.int64]:
        try:
            array, _ = to_array(keys)
            if array.ndim != 1:
                raise Misfit(f"has shape {list(array.shape)}, and one axis is wanted")
            if array.dtype == np.uint64:
                return array.view(np.int64)
            return fit(array, _INT64, array.shape)
        except Misfit as misfit:
            raise ColumnError(f"keys: {misfit}", column="keys", index=misfit.index, value=misfit.value) from None

    def _take_priorities(self, priorities: Any, count: int) -> None:
        values = priorities
        if type(values) is not np.ndarray and is_torch(values) and values.device.type == "cpu":
            values = values.detach()
            if values.dtype.itemsize > 2:  # not bfloat16
                values = values.numpy()
        if type(values) is np.ndarray and values.shape == (count,) and values.dtype.kind in "fiu":
            self._values[:count] = values
            return
        try:
            self._values[:count] = fit(priorities, _FLOAT64, (count,))
        except Misfit as misfit:
            at = f"[{misfit.index[0]}]" if misfit.index else ""
            what = "" if misfit.value is None else f" {shown(misfit.value)}"
            text = f"priorities{at}:{what} {misfit}"
            raise ColumnError(text, column="priorities", index=misfit.index, value=misfit.value) from None

    def _run(
        self,
        what: tuple[str, str],
        count: int,
        start: Callable[[int], int],
        limit: float,
        closing: Callable[[], bool],
    ) -> None:
        operation = self._operation
        begin = time.monotonic()
        try:
            status = start(first_slice(limit))
        except BaseException:  # Ctrl-C, seen when the call returns
            lib.nr_binding_cancel(operation)
            raise
        if status == _PENDING:

            def explain(seconds: float) -> Timeout:
                blocked = ffi.new("struct nr_blocked *")
                lib.nr_operation_blocked(operation[0], blocked)
                text = f"{what[0]} of {count} {what[1]} in table {self._table!r}"
                return self._handle.explain(text, blocked, seconds)

            def step(wait_ns: int) -> int:
                return int(lib.NR_CLOSED if closing() else lib.nr_binding_wait(operation, wait_ns))

            def give_up() -> None:
                lib.nr_binding_cancel(operation)

            status = wait_slices(step, limit, explain, give_up, begin)
            if status:
                give_up()
        if status:
            self._handle.fail(status, f"{what[0]} of {what[1]} in table {self._table!r}")
