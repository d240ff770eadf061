"""Specs as the C wants them: `struct nr_engine_config`, and engines made of it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any

from netreplay._binding import check, ffi, lib
from netreplay.errors import error_for
from netreplay.layout import VERSION_OFFSET, RowLayout, StepLayout, row_layout, step_layout
from netreplay.memory import require, resolve, step_memory, store_window
from netreplay.spec import Spec, TableSpec

LEASE_SECONDS = 10.0
"""how long a draw may hold its steps before they can be taken back"""


@dataclass(frozen=True)
class Plan:
    """A resolved spec with its layouts and the C configuration that they make; owns the C memory."""

    spec: Spec
    steps: dict[str, StepLayout]
    rows: dict[str, RowLayout]
    config: Any
    owned: tuple[Any, ...]
    store_index: dict[str, int]
    table_index: dict[str, int]
    set_index: dict[str, int]

    @property
    def table_names(self) -> list[str]:
        return list(self.table_index)


def _ratio_of(table: TableSpec) -> dict[str, float]:
    """Samples per insert of `struct nr_limits`, and the bounds of inserts x samples_per_insert - samples."""
    limiter = table.limiter
    if limiter.size is not None:  # each item is drawn once, and at most `size` are waiting for it
        return {"samples_per_insert": 1.0, "least": 0.0, "most": float(limiter.size)}
    if limiter.samples_per_insert is None or limiter.error_buffer is None:
        return {"samples_per_insert": 0.0, "least": 0.0, "most": 0.0}
    middle = max(1, table.min_size) * limiter.samples_per_insert
    return {
        "samples_per_insert": limiter.samples_per_insert,
        "least": middle - limiter.error_buffer,
        "most": middle + limiter.error_buffer,
    }


def limits_of(table: TableSpec) -> dict[str, float]:
    """`struct nr_limits` of a table."""
    return {
        **_ratio_of(table),
        "min_size": table.min_size,
        "max_sampled": 1 if table.limiter.size is not None else table.max_sampled or 0,
        "max_age_ns": round((table.max_age or 0) * 1e9),
        "versions": 0 if table.max_lag is None else table.max_lag + 1,
    }


def plan(spec: Spec, *, seed: int | None = None, lease_seconds: float = LEASE_SECONDS) -> Plan:
    """Reckons everything that a server or client of this spec needs; allocates nothing of the engine's."""
    spec = resolve(spec)
    steps = {name: step_layout(store, name) for name, store in spec.stores.items()}
    rows = {name: row_layout(table, steps[table.store], name) for name, table in spec.tables.items()}
    set_index = {name: index for index, name in enumerate(spec.parameters)}
    store_index = {name: index for index, name in enumerate(spec.stores)}
    stores = ffi.new("struct nr_store_config[]", len(spec.stores))
    for entry, (name, store) in zip(stores, spec.stores.items(), strict=True):
        entry.step_bytes = steps[name].step_bytes
        entry.observation_bytes = steps[name].observation_bytes
        entry.steps, entry.in_flight, entry.streams = store.steps, store.in_flight, store.streams
        entry.window = store_window(spec, name)
    gathers = ffi.new("struct nr_gather[]", max(1, sum(len(row.gathers) for row in rows.values())))
    tables = ffi.new("struct nr_table_config[]", len(spec.tables))
    first = 0
    for entry, (name, table) in zip(tables, spec.tables.items(), strict=True):
        entry.store = store_index[table.store]
        entry.capacity, entry.leases = table.capacity, table.leases
        entry.limits = limits_of(table)
        entry.top, entry.passes = table.top or 0, table.passes
        entry.version_set, entry.version_offset = set_index[table.parameters], VERSION_OFFSET
        entry.sampler = getattr(lib, f"NR_SAMPLER_{table.sampler.upper()}")
        entry.remover = getattr(lib, f"NR_REMOVER_{table.remover.upper()}")
        entry.exponent, entry.window = table.exponent, table.window.steps
        entry.row_bytes, entry.item_bytes = rows[name].row_bytes, rows[name].item_bytes
        entry.first_gather, entry.gather_count = first, len(rows[name].gathers)
        for gather in rows[name].gathers:
            gathers[first] = gather
            first += 1
    sets = ffi.new("struct nr_set_config[]", len(spec.parameters))
    for entry, parameters in zip(sets, spec.parameters.values(), strict=True):
        entry.bytes = parameters.max_bytes
    config = ffi.new("struct nr_engine_config *")
    config.seed = secrets.randbits(64) if seed is None else seed
    config.lease_ns = int(lease_seconds * 1e9)
    now = time.time_ns()
    config.start_seconds = now // 10**9
    config.first_version = (now % 10**9 // 10**6) << 22  # the millisecond: a quick restart goes on upwards
    config.store_count, config.table_count, config.set_count = len(stores), len(tables), len(sets)
    config.stores, config.tables, config.gathers, config.sets = stores, tables, gathers, sets
    return Plan(
        spec=spec,
        steps=steps,
        rows=rows,
        config=config,
        owned=(stores, tables, gathers, sets),
        store_index=store_index,
        table_index={name: index for index, name in enumerate(spec.tables)},
        set_index=set_index,
    )


def engine_bytes(planned: Plan) -> int:
    """What `create` would take; BadConfigError when the C refuses the configuration."""
    status = ffi.new("int *")
    size = int(lib.nr_engine_bytes(planned.config, status))
    if size == 0:
        check(status[0] or lib.NR_BAD_CONFIG, "the engine refuses this configuration")
    return size


def create(planned: Plan, *, limit: int | None = None, beside: int = 0) -> tuple[Any, int]:
    """An engine (its new owner destroys it) and its bytes.

    NoMemoryError, before anything is taken, when it and `beside` more bytes are above the limit (None: what is
    available).
    """
    require(planned.spec, step_memory(planned.spec) + beside, limit)
    size = engine_bytes(planned)
    require(planned.spec, size + beside, limit)
    status = ffi.new("int *")
    engine = lib.nr_engine_create(planned.config, status)
    if engine == ffi.NULL:
        raise error_for(status[0] or lib.NR_NO_MEMORY, f"an engine of {size} bytes cannot be made")
    return engine, size
