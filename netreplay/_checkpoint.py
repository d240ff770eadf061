"""Checkpoint files from Python: what one holds, and a fresh engine filled from it under today's spec."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netreplay._binding import ffi, lib
from netreplay._engine import Plan
from netreplay.errors import (
    BadVersionError,
    CheckpointError,
    MalformedError,
    NetreplayError,
    NoMemoryError,
    SystemRefusedError,
)
from netreplay.spec import Spec
from netreplay.spec_json import first_difference, from_json

_NONE = 2**32 - 1


@dataclass(frozen=True)
class CheckpointInfo:
    """What a whole checkpoint file holds."""

    path: str
    bytes: int
    """of the file"""
    spec: Spec
    """of the process that wrote it"""
    items: dict[str, int]
    """by table"""
    capacities: dict[str, int]
    """items that each table had room for, by table"""
    steps: int
    """each once, of all stores"""
    streams: int
    """of all stores"""


@dataclass(frozen=True)
class Restored:
    """What a restore brought back."""

    path: str
    items: dict[str, int]
    """restored, by today's table; those that the file does not have are absent"""
    left_out: dict[str, int]
    """items of the file without a place today, by the file's table"""
    streams: int
    """restored"""
    differences: list[str]
    """what is another than when the file was written, one readable line each; today's configuration holds"""


def _refusal(path: str, status: int, file: Any) -> NetreplayError:
    complaint = ffi.string(file.complaint).decode("utf-8", "replace") or "refused"
    if status == lib.NR_SYSTEM:
        error = SystemRefusedError(f"checkpoint {path}: {complaint}", path=path)
        error.errno = int(file.error)
        return error
    if status == lib.NR_NO_MEMORY:
        return NoMemoryError(f"checkpoint {path}: {complaint}", path=path)
    return CheckpointError(f"checkpoint {path}: {complaint}", path=path, offset=int(file.offset))


def _spec_of(path: str, file: Any) -> Spec:
    text = ffi.buffer(file.spec, file.spec_bytes)[:].decode("utf-8", "replace")
    try:
        return from_json(text)
    except (MalformedError, BadVersionError) as error:
        raise CheckpointError(f"checkpoint {path}: its spec cannot be read: {error}", path=path, offset=0) from None


def inspect(path: str | Path) -> CheckpointInfo:
    """Reads the whole file, checksums included. CheckpointError: it is not whole, or not one that can be read."""
    name = os.fspath(path)
    file = ffi.new("struct nr_checkpoint_file *")
    status = int(lib.nr_checkpoint_inspect(os.fsencode(name), file))
    try:
        if status:
            raise _refusal(name, status, file)
        spec = _spec_of(name, file)
        tables = {table: file.restored.tables[index] for index, table in enumerate(spec.tables)}
        return CheckpointInfo(
            path=name,
            bytes=int(file.bytes),
            spec=spec,
            items={table: int(entry.items) for table, entry in tables.items()},
            capacities={table: int(entry.capacity) for table, entry in tables.items()},
            steps=int(file.restored.steps),
            streams=int(file.restored.streams),
        )
    finally:
        lib.nr_checkpoint_file_free(file)


_UNREADABLE_STORE = ("observation", "action")
_READABLE_WINDOW = ("gamma",)


def _misfit(path: str, where: str, difference: str) -> CheckpointError:
    return CheckpointError(
        f"checkpoint {path}: {where}: its items cannot be read as today's (today, then): {difference}; change it back, "
        f"or rename the {where.split('.')[0]} to start empty",
        path=path,
        field=where,
    )


def compare(path: str, today: Spec, then: Spec) -> list[str]:
    """What differs, readably; CheckpointError where it makes items unreadable."""
    lines: list[str] = []
    now_document, then_document = asdict(today), asdict(then)
    for kind, singular in (("stores", "store"), ("tables", "table"), ("parameters", "parameters")):
        ours, theirs = now_document[kind], then_document[kind]
        lines += [f"{singular}.{name}: not in the checkpoint: starts empty" for name in ours if name not in theirs]
        lines += [f"{singular}.{name}: only in the checkpoint: left out" for name in theirs if name not in ours]
        for name in [name for name in ours if name in theirs]:
            for key in ours[name]:
                mine, other = ours[name][key], theirs[name].get(key)
                where = f"{singular}.{name}.{key}"
                if mine == other:
                    continue
                if kind == "stores" and key in _UNREADABLE_STORE:
                    raise _misfit(path, where, str(first_difference(mine, other)))
                if kind == "tables" and key == "store":
                    raise _misfit(path, where, f"{mine!r} and {other!r}")
                if kind == "tables" and key == "window":
                    for part in mine:
                        if mine[part] != other.get(part) and part not in _READABLE_WINDOW:
                            raise _misfit(path, f"{where}.{part}", f"{mine[part]!r} and {other.get(part)!r}")
                    lines += [
                        f"{where}.{part}: {other.get(part)!r} then, {mine[part]!r} today: items keep what was computed"
                        for part in _READABLE_WINDOW
                        if part in mine and mine[part] != other.get(part)
                    ]
                    continue
                lines.append(f"{where}: {other!r} then, {mine!r} today")
    return lines


def _map_of(planned: Plan, then: Spec) -> Any:
    found = ffi.new("struct nr_restore_map *")
    for name, (entries, indices) in {
        "stores": (then.stores, planned.store_index),
        "tables": (then.tables, planned.table_index),
        "sets": (then.parameters, planned.set_index),
    }.items():
        target = getattr(found, name)
        for index in range(len(target)):
            target[index] = _NONE
        for index, entry in enumerate(entries):
            target[index] = indices.get(entry, _NONE)
    return found


def restore(engine: Any, planned: Plan, path: str | Path) -> Restored:
    """Fills a fresh engine; on an error the engine is of no use and must be destroyed.

    CheckpointError: not whole, or of items that today's spec cannot read (names what differs).
    """
    info = inspect(path)
    differences = compare(info.path, planned.spec, info.spec)
    file = ffi.new("struct nr_checkpoint_file *")
    found = _map_of(planned, info.spec)
    status = int(lib.nr_checkpoint_restore(os.fsencode(info.path), engine, found, file))
    try:
        if status:
            raise _refusal(info.path, status, file)
        items: dict[str, int] = {}
        left_out = {name: count for name, count in info.items.items() if name not in planned.table_index and count}
        for name, index in planned.table_index.items():
            table = file.restored.tables[index]
            if not table.found:
                continue
            items[name] = int(table.restored)
            if table.items > table.restored:
                left_out[name] = int(table.items - table.restored)
                differences.append(f"table.{name}: the newest {table.restored} of {table.items} items have a place")
            if not table.keys:
                differences.append(f"table.{name}: its items have new keys: slots are numbered differently")
        streams = int(file.restored.streams_restored)
        if streams < info.streams:
            differences.append(f"streams: {streams} of {info.streams} have a place")
        return Restored(info.path, items, left_out, streams, differences)
    finally:
        lib.nr_checkpoint_file_free(file)


def failure(path: str, status: int, error: int) -> NetreplayError:
    """Why a checkpoint was not written; what was at `path` before is still there."""
    if status == lib.NR_SYSTEM:
        refused = SystemRefusedError(f"checkpoint {path}: not written: {os.strerror(error)}", path=path)
        refused.errno = error
        return refused
    if status == lib.NR_WAIT_TURN:
        return CheckpointError(f"checkpoint {path}: another one is being written", path=path)
    if status == lib.NR_TOO_MANY:
        return CheckpointError(f"checkpoint {path}: more steps than a file can number", path=path)
    return CheckpointError(f"checkpoint {path}: ended early", path=path)
