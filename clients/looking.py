"""Looking at a table without sampling: items by their keys, and how its items are distributed.

Source: docs/semantics.md 4 (looking), docs/engine.md.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, first_slice, lib, wait_slices
from netreplay.clients.arguments import seconds, shown
from netreplay.clients.batch import Batch, Draws
from netreplay.clients.handle import Handle
from netreplay.dtypes import ColumnType, Misfit, fit, to_array
from netreplay.errors import ColumnError, Status, Timeout

_INT64 = ColumnType("int64")
_MOST_PARTS = 4096  # of one call of the C
_MOST_ROWS = 65_536  # of the same
_HEAD_BYTES = int(ffi.sizeof("struct nr_draw_head"))
_OK, _PENDING = int(Status.OK), int(Status.PENDING)


class Found(Batch):
    """What `Table.get` gives: a batch with a row for each key, zeros where the table has no such item."""

    __slots__ = ()

    @property
    def found(self) -> NDArray[np.bool_]:
        """bool [n]: the item is in the table; `keys` is -1 and `probabilities` 0 where it is not."""
        return np.asarray(self._rows["key"] != -1)

    def torch(self) -> Found:
        """The same batch with tensors that share its memory."""
        return self if self._as_torch else Found(self._rows, self._layout, self._draws, True)

    def numpy(self) -> Found:
        """The same batch with arrays."""
        return Found(self._rows, self._layout, self._draws, False) if self._as_torch else self


class Histogram(NamedTuple):
    """counts[i] items lie in [edges[i], edges[i + 1]); edges are one more than counts."""

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]


class Histograms(NamedTuple):
    """How a table's items are distributed; one that stayed while they were counted is in each of the three once."""

    items: int
    priority: Histogram
    """raw priorities: zeros, then by powers of two; the outermost buckets hold all beyond them"""
    age: Histogram
    """seconds since their insertion, by powers of two of a nanosecond"""
    sampled: Histogram
    """times drawn, refunds taken off: 0, 1, 2, 3 to 4, 5 to 8, ..."""


def _edges() -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    least, buckets = int(lib.NR_PRIORITY_BINADE), int(lib.NR_PRIORITY_BUCKETS)
    inner = [2.0**e for e in range(least + 1, least + buckets - 1)]
    priority = np.array([0.0, np.nextafter(0.0, 1.0), *inner, np.inf])
    age = np.array([0.0, *(2.0**e * 1e-9 for e in range(1, int(lib.NR_AGE_BUCKETS) + 1))])
    powers = [2.0**e + 1 for e in range(int(lib.NR_SAMPLED_BUCKETS) - 1)]
    sampled = np.array([0.0, 1.0, *powers])
    return priority, age, sampled


def histograms(handle: Handle, table: str, timeout: float | None) -> Histograms:
    """See Table.histograms."""
    found = ffi.new("struct nr_histograms *")
    index = handle.plan.table_index[table]
    handle.call(
        f"histograms of table {table!r}",
        lambda replay, wait, op: lib.nr_histograms(replay, index, found, wait, op),
        timeout,
    )
    counts = (np.array(list(counted), np.int64) for counted in (found.priority, found.age, found.sampled))
    return Histograms(int(found.items), *(Histogram(*both) for both in zip(_edges(), counts, strict=True)))


def _fit_keys(keys: Any) -> NDArray[np.int64]:
    try:
        array, _ = to_array(keys)
        if array.ndim != 1:
            raise Misfit(f"has shape {list(array.shape)}, and one axis is wanted")
        if array.dtype == np.uint64:
            return np.ascontiguousarray(array.view(np.int64))
        return np.ascontiguousarray(fit(array, _INT64, array.shape))
    except Misfit as misfit:
        raise ColumnError(
            f"keys: {misfit if misfit.value is None else f'{shown(misfit.value)} {misfit}'}",
            column="keys",
            index=misfit.index,
            value=misfit.value,
        ) from None


def get(handle: Handle, table: str, keys: Any, timeout: float | None, as_torch: bool) -> Found:
    """See Table.get."""
    limit = handle.timeout if timeout is None else seconds(timeout)
    begin = time.monotonic()
    plan, array = handle.plan, _fit_keys(keys) if np.size(keys) else np.zeros(0, np.int64)
    layout = plan.rows[table]
    part = min(int(lib.NR_GET_PART), plan.spec.tables[table].leases)
    rows = np.zeros(len(array), layout.dtype)
    heads = b""
    step = min(_MOST_PARTS * part, _MOST_ROWS // part * part)
    with handle as replay:
        for first in range(0, len(array), step):
            heads += _some(
                handle, replay, table, array[first : first + step], rows[first : first + step], limit, begin, part
            )
    prioritized = plan.spec.tables[table].sampler == "prioritized"
    return Found(rows, layout, Draws(heads, part, prioritized), as_torch)


def _some(
    handle: Handle,
    replay: Any,
    table: str,
    keys: NDArray[np.int64],
    rows: NDArray[Any],
    limit: float,
    begin: float,
    part: int,
) -> bytes:
    """The rows of the keys into `rows`; the heads of their parts."""
    what = f"get of {len(keys)} keys from table {table!r}"
    index = handle.plan.table_index[table]
    heads = ffi.new("struct nr_draw_head[]", -(-len(keys) // part))
    parts, cell = ffi.new("uint32_t *"), ffi.new("struct nr_sample **")
    asked, target = ffi.from_buffer("uint64_t[]", keys), ffi.from_buffer(rows.view(np.uint8))

    def step(wait_ns: int) -> int:
        return int(lib.nr_binding_take(cell, wait_ns, heads, parts))

    def explain(waited: float) -> Timeout:
        blocked = ffi.new("struct nr_blocked *")
        lib.nr_sample_blocked(cell[0], blocked)
        return handle.explain(what, blocked, waited)

    try:
        status = lib.nr_get_start(replay, index, len(keys), asked, target, cell)
        if status == _OK:
            status = step(first_slice(limit))
        if status == _PENDING:
            status = wait_slices(step, limit, explain, lambda: None, begin)
        if status != _OK:
            handle.fail(status, what)
    finally:  # Ctrl-C too: nothing is written to the rows any more
        lib.nr_binding_give_up(cell)
    return bytes(ffi.buffer(heads, parts[0] * _HEAD_BYTES)[:])
