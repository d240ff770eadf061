"""A table's limits, to look at and to change while it is in use. Source: docs/semantics.md 6, docs/engine.md."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from netreplay._binding import ffi, lib
from netreplay.clients.arguments import is_number, shown
from netreplay.clients.handle import Handle
from netreplay.errors import BadCountError, SpecError
from netreplay.spec import MAX_SAMPLES, MAX_U32, TableSpec

_MAX_AGE = 2**63 / 1e9  # seconds
_MOST_DRAWS = 2**31 - 1  # of one item


class Limits(NamedTuple):
    """When a table lets inserts and draws through, and when its items leave."""

    min_size: int
    """items before anything is drawn"""
    samples_per_insert: float
    """0: no ratio, and the two that follow mean nothing"""
    least: float
    """draws wait while inserts x samples_per_insert - samples would fall below it"""
    most: float
    """inserts wait while it would rise above it"""
    max_sampled: int | None
    """draws of one item, after which it leaves; None: no limit, as for the next two"""
    max_age: float | None
    """seconds after its insertion at which an item leaves"""
    max_lag: int | None
    """publications by which an item may be behind"""

    @property
    def error_buffer(self) -> float:
        """samples by which the ratio may be off"""
        return (self.most - self.least) / 2


def limits_of(c: Any) -> Limits:
    """Of a `struct nr_limits`, or of a `struct nr_table_info`, which has the same names."""
    return Limits(
        c.min_size,
        c.samples_per_insert,
        c.least,
        c.most,
        c.max_sampled or None,
        c.max_age_ns / 1e9 if c.max_age_ns else None,
        c.versions - 1 if c.versions else None,
    )


def _refuse(table: str, field: str, value: object, complaint: str) -> SpecError:
    path = f"table.{table}.{field}"
    return SpecError(f"{path}: {shown(value)} {complaint}", path=path, value=value)


class _Asked:
    """The checked arguments of one `configure`, as the C takes them."""

    def __init__(self, name: str, table: TableSpec) -> None:
        self.name, self.table = name, table
        self.change = ffi.new("struct nr_limits_change *")

    def _take(self, field: str, bit: int, value: object) -> None:
        setattr(self.change, field, value)
        self.change.which |= bit

    def whole(self, field: str, value: Any, low: int, high: int) -> int:
        """value, a whole number from low to high"""
        if is_number(value) and value == math.floor(value) and low <= value <= high and not isinstance(value, float):
            return int(value)
        raise _refuse(self.name, field, value, f"is not a whole number between {low} and {high}")

    def number(self, field: str, value: Any, low: float, high: float) -> float:
        """value, a number from low to high"""
        if is_number(value) and low <= value <= high:
            return float(value)
        raise _refuse(self.name, field, value, f"is not a number between {low:g} and {high:g}")

    def min_size(self, value: Any) -> None:
        self._not_of_a_queue("min_size", value)
        self._take("min_size", lib.NR_LIMIT_MIN_SIZE, self.whole("min_size", value, 0, self.table.capacity))

    def samples_per_insert(self, value: Any) -> None:
        self._not_of_a_queue("samples_per_insert", value)
        ratio = self.number("samples_per_insert", value, 0.0, MAX_SAMPLES)
        self._take("samples_per_insert", lib.NR_LIMIT_SAMPLES_PER_INSERT, ratio)

    def error_buffer(self, value: Any) -> None:
        self._not_of_a_queue("error_buffer", value)
        ratio = self.change.samples_per_insert if self.change.which & lib.NR_LIMIT_SAMPLES_PER_INSERT else 1.0
        least = max(1.0, ratio)
        if is_number(value) and 0 <= value < least:
            raise _refuse(
                self.name, "error_buffer", value, f"is below {least:g}, the larger of 1 and samples_per_insert"
            )
        buffer = self.number("error_buffer", value, least, MAX_SAMPLES)
        self._take("error_buffer", lib.NR_LIMIT_ERROR_BUFFER, buffer)

    def size(self, value: Any) -> None:
        if self.table.limiter.kind not in ("queue", "stack"):
            raise _refuse(
                self.name, "size", value, f"is for queues and stacks; this limiter is of kind {self.table.limiter.kind}"
            )
        self._take("size", lib.NR_LIMIT_SIZE, self.whole("size", value, 1, self.table.capacity))

    def max_sampled(self, value: Any) -> None:
        self._not_of_a_queue("max_sampled", value)
        most = 0 if value == math.inf else self.whole("max_sampled", value, 1, _MOST_DRAWS)
        self._take("max_sampled", lib.NR_LIMIT_MAX_SAMPLED, most)

    def max_age(self, value: Any) -> None:
        if is_number(value) and value <= 0:
            raise _refuse(self.name, "max_age", value, "is not above 0: no item could be drawn")
        age = 0 if value == math.inf else max(1, round(self.number("max_age", value, 0.0, _MAX_AGE) * 1e9))
        self._take("max_age_ns", lib.NR_LIMIT_MAX_AGE, age)

    def max_lag(self, value: Any) -> None:
        versions = 0 if value == math.inf else self.whole("max_lag", value, 0, MAX_U32) + 1
        self._take("versions", lib.NR_LIMIT_VERSIONS, versions)

    def _not_of_a_queue(self, field: str, value: object) -> None:
        kind = self.table.limiter.kind
        if kind in ("queue", "stack"):
            raise _refuse(
                self.name, field, value, f"cannot be changed of a {kind}, whose items are drawn once each; size can"
            )


def configure(handle: Handle, name: str, wanted: dict[str, Any], timeout: float | None) -> Limits:
    """Changes the limits that are not None; those in force then."""
    asked = _Asked(name, handle.plan.spec.tables[name])
    said = {field: value for field, value in wanted.items() if value is not None}
    for field, value in said.items():
        getattr(asked, field)(value)
    limits = ffi.new("struct nr_limits *")
    index = handle.plan.table_index[name]
    what = f"configure table {name!r}" + "".join(f", {field} = {shown(value)}" for field, value in said.items())
    handle.call(
        what,
        lambda replay, wait, op: lib.nr_configure(replay, index, asked.change, limits, wait, op),
        timeout,
        table=name,
        limits=said,
    )
    return limits_of(limits)


def _in_force(handle: Handle, index: int) -> Any:
    """`struct nr_limits` of a table now: what its ratio depends on."""
    infos = ffi.new("struct nr_table_info[]", index + 1)
    handle.call("tables", lambda replay, wait, op: lib.nr_tables(replay, infos, index + 1, wait, op))
    limits = ffi.new("struct nr_limits *")
    for field in ("min_size", "samples_per_insert", "least", "most"):
        setattr(limits, field, getattr(infos[index], field))
    return limits


def check_rows(handle: Handle, name: str, rows: int) -> None:
    """BadCountError when a batch of so many rows could wait for ever, with every insert held back."""
    index = handle.plan.table_index[name]
    if rows <= lib.nr_limits_rows(ffi.addressof(handle.plan.config.tables[index], "limits")):
        return
    limits = _in_force(handle, index)  # the spec's may have been changed since
    most = lib.nr_limits_rows(limits)
    if rows <= most:
        return
    kind = handle.plan.spec.tables[name].limiter.kind
    if kind in ("queue", "stack"):
        why = f"the {kind} {name!r} holds {limits.most:g} items at most"
    else:
        why = (
            f"table {name!r} lets inserts go on while inserts x {limits.samples_per_insert:g} - samples stays up to "
            f"{limits.most:g}, and draws down to {limits.least:g}, so that at most {most:g} are sure to come"
        )
    raise BadCountError(
        f"batch_size: {rows} could wait for ever: {why}; lower batch_size or raise "
        + ("size" if kind in ("queue", "stack") else "error_buffer"),
        field="batch_size",
        value=rows,
    )
