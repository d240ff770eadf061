"""Priorities of the items that an append completes, from what the user gave. Source: docs/semantics.md 2 (append)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netreplay._binding import ffi, lib
from netreplay._engine import Plan
from netreplay.clients.arguments import shown
from netreplay.dtypes import ColumnType, Misfit, fit, to_array
from netreplay.errors import ColumnError, NoTableError

Values = Any
"""a number, an array, or a callable from an items' fields to an array"""
Priority = None | float | NDArray[Any] | Callable[[dict[str, NDArray[Any]]], Any] | Mapping[str, Any]

_FLOAT64 = ColumnType("float64")


def _fit(value: Any, count: int, whose: str) -> NDArray[np.float64]:
    try:
        array, _ = to_array(value)
        if array.ndim == 0:
            return np.full(count, float(fit(value, _FLOAT64, ())), np.float64)
        return fit(value, _FLOAT64, (count,))
    except Misfit as misfit:
        at = f"[{misfit.index[0]}]" if misfit.index else ""
        what = "value" if misfit.value is None else shown(misfit.value)
        raise ColumnError(
            f"priority{at}: {what} {misfit} ({whose})",
            column="priority",
            index=misfit.index,
            value=misfit.value,
        ) from None


def staged_rows(actor: Any, plan: Plan, table: int, count: int) -> NDArray[Any]:
    """The staged items of a table as records of its row layout [count]; keys and probabilities are 0."""
    layout = plan.rows[plan.table_names[table]]
    raw = np.zeros(count * layout.row_bytes, np.uint8)
    lib.nr_actor_staged_rows(actor, table, ffi.from_buffer(raw))
    return raw.view(layout.dtype)


def staged_priorities(actor: Any, plan: Plan, items: int, streams: int, priority: Any) -> NDArray[np.float64]:
    """One priority per staged item, float64 [items]; NaN, infinite and negative ones are left for the server to refuse.

    A table that a dict leaves out keeps its default, which the largest-priority rule gives: NaN cannot stand for
    that, so such a dict is refused.
    """
    if isinstance(priority, int | float | np.number) and not isinstance(priority, bool):
        return np.full(items, float(priority), np.float64)
    tables = np.empty(items, np.uint32)
    rows = np.empty(items, np.uint32)
    lib.nr_actor_staged(actor, ffi.from_buffer("uint32_t[]", tables), ffi.from_buffer("uint32_t[]", rows))
    if not callable(priority) and not isinstance(priority, Mapping):
        return _fit(priority, streams, "one per environment")[rows]
    values = np.empty(items, np.float64)
    for table in np.unique(tables):
        name = plan.table_names[table]
        mine = tables == table
        given = priority
        if isinstance(priority, Mapping):
            _known(priority, plan)
            if name not in priority:
                raise ColumnError(f"priority: table {name!r} is missing", column="priority", value=list(priority))
            given = priority[name]
        if callable(given):
            records = staged_rows(actor, plan, int(table), int(mine.sum()))
            layout = plan.rows[name]
            fields = {field: layout.view(records, field) for field in layout.names}
            values[mine] = _fit(
                given({**fields, "row": rows[mine]}), int(mine.sum()), f"one per item of table {name!r}"
            )
        elif np.ndim(given) == 0:
            values[mine] = _fit(given, int(mine.sum()), f"table {name!r}")
        else:
            values[mine] = _fit(given, streams, "one per environment")[rows[mine]]
    return values


def _known(priority: Mapping[str, Any], plan: Plan) -> None:
    for name in priority:
        if name not in plan.table_index:
            known = ", ".join(plan.table_names)
            raise NoTableError(f"priority: table {name!r} does not exist; there are: {known}", value=name)
